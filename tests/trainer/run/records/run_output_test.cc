#include "trainer/run/records/run_output.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

std::string EventsOf(const std::string& run_dir) {
  std::string events;
  for (const auto& file : std::filesystem::directory_iterator(run_dir + "/tensorboard"))
    events += ReadFile(file.path());
  return events;
}

// event_file_test.cc compares the bytes of such events with TensorBoard's own.
TEST(RunOutput, TensorBoardGetsSettingsAndSamples) {
  const TempDir dir;
  RunOutputOptions options = {.run_dir = dir.path()};
  const Hparams settings = {{"optimizer.lr", 1e-6}, {"objective.name", "ta_opd"}};
  options.settings = settings;
  ASSERT_OK_AND_ASSIGN(auto output, RunOutput::Open(options));
  EXPECT_NE(EventsOf(dir.path()).find("_hparams_/session_start_info"), std::string::npos);
  EXPECT_NE(EventsOf(dir.path()).find("objective.name"), std::string::npos);

  output->WriteSamples(7, "eval", {{"val:1", "# 1+1=\n?", "2", "2", true}});
  const TextTable table = {{"prompt", "response", "answer", "correct"},
                           {"    # 1+1=\n    ?", "    2", "    2", "yes"}};
  // The time comes first in an event; what follows it is the same.
  constexpr size_t kTimeBytes = 9;
  const std::string event = TextEvent(0, 7, "samples/eval", table).substr(kTimeBytes);
  EXPECT_NE(EventsOf(dir.path()).find(event), std::string::npos);
  EXPECT_NE(ReadFile(dir.File("samples.jsonl")).find("val:1"), std::string::npos);
}

}  // namespace
}  // namespace taopd::testing
