#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/metrics/sink.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

class RecordingSink final : public MetricSink {
 public:
  RecordingSink(std::vector<std::string>* calls, std::string name, bool fails)
      : calls_(calls), name_(std::move(name)), fails_(fails) {}
  absl::Status Write(int64_t step, const Metrics& metrics) override {
    calls_->push_back(
        Concat(name_, " ", step, " ", metrics.at(0).first, "=", metrics.at(0).second));
    return fails_ ? Unavailable(name_, " failed") : absl::OkStatus();
  }

 private:
  std::vector<std::string>* calls_;
  std::string name_;
  bool fails_;
};

TEST(MetricFanout, AllAreTriedAndTheFirstErrorIsReturned) {
  std::vector<std::string> calls;
  MetricFanout fanout;
  EXPECT_OK(fanout.Write(1, {}));  // without sinks all is well
  fanout.Add(std::make_unique<RecordingSink>(&calls, "a", false));
  fanout.Add(std::make_unique<RecordingSink>(&calls, "b", true));
  fanout.Add(std::make_unique<RecordingSink>(&calls, "c", true));
  EXPECT_ERROR(fanout.Write(3, {{"x", 2}}), kUnavailable, "b failed");
  EXPECT_THAT(calls, ElementsAre("a 3 x=2", "b 3 x=2", "c 3 x=2"));
}

}  // namespace
}  // namespace taopd::testing
