#include "server/serving/policy/policy_updates.h"

#include <absl/time/clock.h>

#include <filesystem>

#include "common/io/file.h"
#include "common/io/sha256.h"
#include "tests/common/engine/result_box.h"
#include "tests/server/fake_engine.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

// Takes any directory that holds a file "model.safetensors", and remembers its content.
class FakeWeights final : public EngineWeights {
 public:
  class Staged final : public StagedWeights {
   public:
    Staged(FakeWeights* weights, std::string content)
        : weights_(weights), content_(std::move(content)) {}
    int64_t num_changed() const override { return 7; }
    absl::Status Apply() override {
      TAOPD_RETURN_IF_ERROR(weights_->fails_to_apply);
      weights_->applied = content_;
      return absl::OkStatus();
    }

   private:
    FakeWeights* const weights_;
    const std::string content_;
  };
  absl::StatusOr<std::unique_ptr<StagedWeights>> Stage(
      const std::string& directory, const std::vector<TensorSum>& sums) override {
    auto content = ReadFileToString(directory + "/model.safetensors", 1 << 20);
    if (!content.ok()) return NotFound(directory);
    if (sums.empty() || sums[0].sha256 != Sha256Hex(*content))
      return DataLoss("tensor t has another checksum");
    return std::make_unique<Staged>(this, *content);
  }
  int64_t num_bytes() const override { return 1000; }

  std::string applied = "start";
  absl::Status fails_to_apply;
};

class PolicyUpdatesTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(""); }
  void Start(const std::string& weights_dir) {
    updates_ = std::make_unique<PolicyUpdates>(&state_, weights_dir);
    FakeModel fake = MakeFakeModel();
    engine_ = fake.engine;
    weights_ = std::make_shared<FakeWeights>();
    fake.model->weights = weights_;
    updates_->Begin(fake.model.get());
    state_.SetReady(fake.model);
  }
  PolicyUpdate UpdateOf(const std::string& version, const std::string& content,
                        const std::string& directory = "") {
    return PolicyUpdate{
        .version = version, .directory = directory, .sums = {{"t", Sha256Hex(content)}}};
  }
  std::string Directory(const std::string& name, const std::string& content) {
    std::filesystem::create_directories(dir_.File(name));
    WriteFile(dir_.File(name + "/model.safetensors"), content);
    return dir_.File(name);
  }
  absl::StatusOr<int64_t> Set(const PolicyUpdate& update) {
    return updates_->SetWeights(update, absl::InfiniteFuture());
  }
  // Submits a request to score. Its result comes to box_ under `key`.
  void Submit(const std::shared_ptr<const ServedModel>& model, int key) {
    InferenceRequest request = {.token_ids = {1, 2}};
    request.score.emplace();
    model->engine->Submit(request, box_.Done(key));
  }
  WeightFilePart Part(const std::string& content, int64_t offset, std::string_view data) {
    return {.version = "v",
            .file = "model.safetensors",
            .offset = offset,
            .file_bytes = static_cast<int64_t>(content.size()),
            .data = data,
            .sha256 = Sha256Hex(data)};
  }

  TempDir dir_;
  ServingState state_{Clock::Real(), absl::Seconds(60)};
  std::unique_ptr<PolicyUpdates> updates_;
  FakeEngine* engine_ = nullptr;
  std::shared_ptr<FakeWeights> weights_;
  ResultBox box_;
};

TEST_F(PolicyUpdatesTest, AnUpdateIsANewVersionOfTheServedModel) {
  const std::shared_ptr<const ServedModel> before = state_.model();
  ASSERT_OK_AND_ASSIGN(const int64_t changed,
                       Set(UpdateOf("step-1-a", "one", Directory("one", "one"))));
  EXPECT_EQ(changed, 7);
  EXPECT_EQ(weights_->applied, "one");
  const std::shared_ptr<const ServedModel> after = state_.model();
  EXPECT_EQ(after->revision, "step-1-a");
  EXPECT_EQ(after->weight_version, "step-1-a");
  EXPECT_EQ(after->name, before->name);
  EXPECT_EQ(before->revision, "0123456789abcdef");
  // A request that was admitted before cannot reach the new weights under the old name.
  Submit(before, 0);
  Submit(after, 1);
  EXPECT_ERROR(box_.Wait(0), kUnavailable, "replaced");
  EXPECT_OK(box_.Wait(1));
  ASSERT_OK_AND_ASSIGN(const std::string base, updates_->base_revision());
  EXPECT_EQ(base, "0123456789abcdef");
}

TEST_F(PolicyUpdatesTest, SettingTheServedVersionDoesNothing) {
  ASSERT_OK(Set(UpdateOf("v", "one", Directory("one", "one"))));
  ASSERT_OK_AND_ASSIGN(const int64_t changed, Set(UpdateOf("v", "", "/absent")));
  EXPECT_EQ(changed, 0);
}

TEST_F(PolicyUpdatesTest, DamagedWeightsLeaveTheOldVersionServing) {
  const PolicyUpdate damaged = UpdateOf("v", "other", Directory("one", "one"));
  EXPECT_ERROR(Set(damaged), kDataLoss, "tensor t");
  EXPECT_ERROR(Set(UpdateOf("v", "x", "/absent")), kNotFound, "/absent");
  EXPECT_ERROR(Set(UpdateOf("../v", "x", "/absent")), kInvalidArgument, "version");
  EXPECT_EQ(state_.model()->revision, "0123456789abcdef");
  Submit(state_.model(), 0);
  EXPECT_OK(box_.Wait(0));
}

TEST_F(PolicyUpdatesTest, SequencesInFlightFinishOrTheOldVersionServesOn) {
  engine_->Hold(true);
  Submit(state_.model(), 0);
  PolicyUpdate update = UpdateOf("v", "one", Directory("one", "one"));
  EXPECT_ERROR(updates_->SetWeights(update, absl::Now()), kDeadlineExceeded,
               "still being computed");
  EXPECT_EQ(weights_->applied, "start");
  EXPECT_EQ(state_.model()->revision, "0123456789abcdef");
  update.drops = true;
  ASSERT_OK(Set(update));
  EXPECT_ERROR(box_.Wait(0), kAborted, "dropped to replace the weights");
}

// The next one may be the version before.
TEST_F(PolicyUpdatesTest, AFailedReplacementRefusesWorkUntilTheNextOne) {
  const PolicyUpdate before = UpdateOf("before", "one", Directory("one", "one"));
  ASSERT_OK(Set(before));
  weights_->fails_to_apply = Internal("no memory");
  const PolicyUpdate next = UpdateOf("v", "two", Directory("two", "two"));
  for (int i = 0; i < 2; ++i) EXPECT_ERROR(Set(next), kInternal, "no memory");
  Submit(state_.model(), 0);
  EXPECT_ERROR(box_.Wait(0), kUnavailable, "replaced");
  EXPECT_ERROR(state_.Ready(), kUnavailable, "must be set again: no memory");
  EXPECT_TRUE(state_.are_weights_damaged());
  EXPECT_OK(state_.Admit());  // a trainer asks for facts before it sets weights
  weights_->fails_to_apply = absl::OkStatus();
  ASSERT_OK_AND_ASSIGN(const int64_t changed, Set(before));
  EXPECT_EQ(changed, 7);
  EXPECT_OK(state_.Ready());
  EXPECT_FALSE(state_.are_weights_damaged());
  Submit(state_.model(), 1);
  EXPECT_OK(box_.Wait(1));
  EXPECT_EQ(Set(next).value(), 7);  // it was not taken for a version that is served
}

TEST_F(PolicyUpdatesTest, FilesArriveInPartsAndGoOnWhereTheyEnded) {
  const std::string content = "0123456789";
  const std::string_view view = content;
  ASSERT_OK_AND_ASSIGN(int64_t next, updates_->PutFilePart(Part(content, 0, "")));
  EXPECT_EQ(next, 0);
  ASSERT_OK_AND_ASSIGN(next, updates_->PutFilePart(Part(content, 0, view.substr(0, 4))));
  EXPECT_EQ(next, 4);
  // Out of order, and once more.
  EXPECT_ERROR(updates_->PutFilePart(Part(content, 6, view.substr(6))), kOutOfRange, "offset 6");
  EXPECT_ERROR(updates_->PutFilePart(Part(content, 0, view.substr(0, 4))), kOutOfRange,
               "4 of its 10 bytes have arrived");
  // Damaged on its way.
  WeightFilePart damaged = Part(content, 4, view.substr(4));
  damaged.data = "456x89";
  EXPECT_ERROR(updates_->PutFilePart(damaged), kDataLoss, "model.safetensors");
  // Not yet whole.
  EXPECT_ERROR(Set(UpdateOf("v", content)), kNotFound, "");
  ASSERT_OK_AND_ASSIGN(next, updates_->PutFilePart(Part(content, 0, "")));
  EXPECT_EQ(next, 4);
  ASSERT_OK_AND_ASSIGN(next, updates_->PutFilePart(Part(content, 4, view.substr(4))));
  EXPECT_EQ(next, 10);
  EXPECT_ERROR(Set(UpdateOf("v", "another content")), kDataLoss, "tensor t");
  ASSERT_OK(Set(UpdateOf("v", content)));
  EXPECT_EQ(weights_->applied, content);
  EXPECT_EQ(state_.model()->revision, "v");
}

TEST_F(PolicyUpdatesTest, WeightsMustBeUnderWeightsDir) {
  Start(dir_.File("root"));
  Directory("root/one", "one");
  Directory("outside", "one");
  EXPECT_ERROR(Set(UpdateOf("v", "one", dir_.File("outside"))), kInvalidArgument,
               "not under weights_dir");
  EXPECT_ERROR(Set(UpdateOf("v", "one", dir_.File("root/../outside"))), kInvalidArgument,
               "not under weights_dir");
  EXPECT_OK(Set(UpdateOf("v", "one", dir_.File("root/one"))));
}

TEST_F(PolicyUpdatesTest, NothingIsUnderAWeightsDirThatCannotBeResolved) {
  std::filesystem::create_symlink(dir_.File("loop"), dir_.File("loop"));
  Start(dir_.File("loop"));
  EXPECT_ERROR(Set(UpdateOf("v", "one", Directory("outside", "one"))), kInvalidArgument,
               "not under weights_dir");
}

}  // namespace
}  // namespace taopd::testing
