#include "common/model/architecture.h"

namespace taopd {

absl::StatusOr<const Architecture*> FindArchitecture(const std::string& name) {
  const Architecture* const kArchitectures[] = {&LlamaArchitecture(), &Qwen3Architecture()};
  std::string known;
  for (const Architecture* architecture : kArchitectures) {
    if (architecture->name == name) return architecture;
    known += (known.empty() ? "" : ", ") + architecture->name;
  }
  return Unimplemented("architecture \"", name, "\" is not implemented; known: ", known);
}

}  // namespace taopd
