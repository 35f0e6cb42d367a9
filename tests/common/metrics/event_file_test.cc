#include "common/metrics/event_file.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tests/support/files.h"

namespace taopd::testing {
namespace {

TEST(Crc32c, VectorsOfRfc3720) {
  EXPECT_EQ(Crc32c(""), 0u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);  // the check value of the CRC catalogs
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string rising;
  for (int i = 0; i < 32; ++i) rising.push_back(static_cast<char>(i));
  EXPECT_EQ(Crc32c(rising), 0x46dd794eu);
  EXPECT_EQ(Crc32c(std::string(rising.rbegin(), rising.rend())), 0x113fdb5cu);
}

// make_events_golden.py writes the same events with TensorBoard's own messages and record writer.
TEST(EventFile, BytesAreThoseOfTensorBoard) {
  const double time_s = 1767225600.25;
  const Metrics metrics = {{"loss/mean", 0.25},
                           {"loss/grad_norm", std::numeric_limits<double>::infinity()},
                           {"optim/lr", 1e-6}};
  const Hparams hparams = {{"objective.name", "ta_opd"},
                           {"optimizer.lr", 1e-6},
                           {"optimizer.offload", false},
                           {"trainer.eval_at_start", true}};
  const TextTable table = {{"prompt", "response"}, {"    1+1=", ""}};
  const std::string bytes = TfRecordFrame(FileVersionEvent(time_s)) +
                            TfRecordFrame(SessionStartEvent(time_s, 300)) +
                            TfRecordFrame(ScalarsEvent(time_s, 300, metrics)) +
                            TfRecordFrame(HparamsEvent(time_s, hparams)) +
                            TfRecordFrame(TextEvent(time_s, 300, "samples/eval", table));
  EXPECT_EQ(bytes, ReadFile(SourcePath("tests/common/metrics/events_golden.tfevents")));
}

TEST(EventFile, StepsPast32BitsKeepTheirValue) {
  // Field 2 (varint) of 2^40: key 0x10, then the seven-bit groups of 2^40.
  const std::string event = SessionStartEvent(0, int64_t{1} << 40);
  EXPECT_NE(event.find(std::string("\x10\x80\x80\x80\x80\x80\x20", 7)), std::string::npos);
}

}  // namespace
}  // namespace taopd::testing
