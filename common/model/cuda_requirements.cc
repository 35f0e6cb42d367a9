#include "common/model/cuda_requirements.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <vector>

namespace taopd {
namespace {

struct CompiledArchitecture {
  int capability = 0;        // 10 * major + minor
  bool is_specific = false;  // the suffix "a"
  bool has_code = false, has_ptx = false;

  bool RunsOn(int device) const {
    if (is_specific) return device == capability;
    return device / 10 == capability / 10 && device >= capability;
  }
  bool CompilesFor(int device) const {
    return is_specific ? device == capability : device >= capability;
  }
};

absl::StatusOr<std::vector<CompiledArchitecture>> ParseArchitectures(std::string_view text) {
  std::vector<CompiledArchitecture> architectures;
  for (absl::string_view word : absl::StrSplit(absl::string_view(text.data(), text.size()), ',')) {
    const absl::string_view whole = word;
    CompiledArchitecture architecture;
    architecture.has_code = !absl::ConsumeSuffix(&word, "-virtual");
    architecture.has_ptx = !absl::ConsumeSuffix(&word, "-real");
    architecture.is_specific = absl::ConsumeSuffix(&word, "a");
    if (!absl::SimpleAtoi(word, &architecture.capability) || architecture.capability < 10) {
      return Internal("the CUDA architecture \"", std::string(whole), "\" is unknown");
    }
    architectures.push_back(architecture);
  }
  return architectures;
}

std::string CapabilityText(int capability) { return Concat(capability / 10, ".", capability % 10); }

// "8.0, 9.0a and, as PTX, 10.0".
std::string ListOf(const std::vector<CompiledArchitecture>& architectures) {
  std::string code, ptx;
  for (const CompiledArchitecture& architecture : architectures) {
    const auto add = [&](std::string* list) {
      *list += Concat(list->empty() ? "" : ", ", CapabilityText(architecture.capability),
                      architecture.is_specific ? "a" : "");
    };
    if (architecture.has_code) add(&code);
    if (architecture.has_ptx) add(&ptx);
  }
  if (ptx.empty()) return code;
  return Concat(code, code.empty() ? "" : " and, ", "as PTX, ", ptx);
}

std::string VersionText(int version) { return Concat(version / 1000, ".", version % 1000 / 10); }

// The oldest series of NVIDIA's Linux driver for a major version of CUDA; empty if unknown.
std::string SeriesFor(int runtime_version) {
  switch (runtime_version / 1000) {
    case 12:
      return " (series 525 or newer)";
    case 13:
      return " (series 580 or newer)";
  }
  return "";
}

}  // namespace

absl::Status CheckCudaDriver(int driver_version, int runtime_version) {
  const int needed = runtime_version / 1000 * 1000;
  if (driver_version >= needed) return absl::OkStatus();
  const std::string has =
      driver_version == 0
          ? std::string("this machine has no driver of NVIDIA's")
          : Concat("this machine's driver is for CUDA ", VersionText(driver_version));
  return FailedPrecondition(has, ", and this program needs one for CUDA ", VersionText(needed),
                            SeriesFor(runtime_version));
}

absl::Status CheckCudaArchitecture(std::string_view architectures, int capability,
                                   int driver_version, int runtime_version) {
  TAOPD_ASSIGN_OR_RETURN(const std::vector<CompiledArchitecture> compiled,
                         ParseArchitectures(architectures));
  bool has_ptx = false;
  for (const CompiledArchitecture& architecture : compiled) {
    if (architecture.has_code && architecture.RunsOn(capability)) return absl::OkStatus();
    has_ptx |= architecture.has_ptx && architecture.CompilesFor(capability);
  }
  if (!has_ptx) {
    return FailedPrecondition("it has compute capability ", CapabilityText(capability),
                              ", and this program has kernels for ", ListOf(compiled),
                              ": build it with -DCMAKE_CUDA_ARCHITECTURES=", capability,
                              "-real for this device");
  }
  if (driver_version >= runtime_version) return absl::OkStatus();
  return FailedPrecondition("it has compute capability ", CapabilityText(capability),
                            ", for which this program has PTX only, and the driver for CUDA ",
                            VersionText(driver_version), " cannot compile PTX of CUDA ",
                            VersionText(runtime_version), ": install a newer driver");
}

}  // namespace taopd
