// Fuzz entry: JSON, and lines of it. What parses is written and read back to the same.
#include "common/io/jsonl.h"
#include "tests/fuzz/files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto value = taopd::ParseJson(text, "fuzz"); value.ok()) {
    const std::string written = value->dump();
    const auto again = taopd::ParseOrderedJson(written, "written");
    TAOPD_CHECK(again.ok());
    TAOPD_CHECK(again->dump() == written);
  }
  const taopd::testing::MemoryFile file(text);
  int64_t last_line = 0;
  const absl::Status read = taopd::ReadJsonl(file.path(), [&](const auto&, int64_t line) {
    TAOPD_CHECK_LT(last_line, line);
    last_line = line;
    return absl::OkStatus();
  });
  TAOPD_CHECK(read.ok() || !read.message().empty());
  return 0;
}
