// Weights that are replaced under a running engine: afterwards it computes what an engine computes
// that was loaded with them, bit for bit; what is damaged changes nothing.

#include <filesystem>

#include "common/engine/engine_factory.h"
#include "common/engine/engine_weights.h"
#include "common/io/sha256.h"
#include "common/model/weights/model_snapshot.h"
#include "tests/common/engine/result_box.h"
#include "tests/common/engine/tiny_model.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

std::shared_ptr<Decoder> RandomModel(const ModelConfig& config, uint64_t seed,
                                     const std::string& dtype = "float32") {
  const DecoderOptions options = {.dtype = dtype, .device = "cpu"};
  return MakeDecoder(config, options, RandomStream(seed, "replaced")).value();
}

std::vector<TensorSum> SumsOf(const std::vector<NamedParameter>& parameters) {
  std::vector<TensorSum> sums;
  for (const auto& [name, tensor] : parameters) {
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(tensor.const_data_ptr()),
                                           tensor.nbytes());
    sums.push_back({name, Sha256OfAll({bytes}, 1)[0]});
  }
  return sums;
}

// Scores, and tokens with their log-probs.
std::vector<InferenceRequest> Requests() {
  std::vector<InferenceRequest> requests;
  for (uint64_t i = 0; i < 4; ++i) {
    InferenceRequest request;
    request.token_ids = RandomIds(9, i % 2);  // the prefix of another one
    request.sampling.emplace();
    request.sampling->seed = i;
    request.sampling->max_new_tokens = 12;
    request.score.emplace();
    request.score->top_k = 5;
    requests.push_back(std::move(request));
  }
  return requests;
}

void ExpectSameAnswers(InferenceEngine* a, InferenceEngine* b) {
  const auto of_a = RunAll(a, Requests()), of_b = RunAll(b, Requests());
  for (size_t i = 0; i < of_a.size(); ++i) {
    ASSERT_OK(of_a[i]);
    ASSERT_OK(of_b[i]);
    EXPECT_EQ(of_a[i]->generated->ids, of_b[i]->generated->ids);
    EXPECT_EQ(of_a[i]->generated->log_probs, of_b[i]->generated->log_probs);
    EXPECT_EQ(of_a[i]->score->log_probs, of_b[i]->score->log_probs);
    EXPECT_EQ(of_a[i]->score->log_tail, of_b[i]->score->log_tail);
  }
}

// A model that writes new values in place, as one on a GPU does, and then may fail.
class InPlaceDecoder final : public Decoder {
 public:
  explicit InPlaceDecoder(std::shared_ptr<Decoder> model)
      : Decoder(model->config(), model->device(), model->dtype()), model_(std::move(model)) {}

  void ReplaceParameters(const std::vector<NewParameter>& changed) override {
    const at::NoGradGuard no_grad;
    std::map<std::string, at::Tensor> by_name;
    for (const auto& [name, tensor] : Parameters()) by_name[name] = tensor;
    for (const NewParameter& parameter : changed)
      by_name.at(parameter.name).copy_(parameter.tensor);
    TORCH_CHECK(!fails, "a fault");
  }
  std::vector<NamedParameter> Parameters() const override { return model_->Parameters(); }
  at::Tensor Forward(const PackedBatch&, const ForwardOptions&) override { return {}; }
  at::Tensor Infer(const PagedBatch&, KvPages*) override { return {}; }
  at::Tensor Logits(const at::Tensor&) override { return {}; }
  at::Tensor lm_head() const override { return {}; }
  int64_t PrepareInference() override { return 0; }
  void KeepForInferenceOnly() override {}
  uint64_t weight_version() const override { return 0; }

  bool fails = false;

 private:
  std::shared_ptr<Decoder> model_;
};

class DecoderWeightsTest : public ::testing::Test {
 protected:
  LoadedEngine Load(const std::string& name, bool takes_weights = false) {
    const EngineOptions options = {.kv_cache_bytes = 1 << 20};
    return LoadEngine(dir_.File(name), "auto", "cpu", 1, options, "", takes_weights).value();
  }
  void Save(const Decoder& decoder, const std::string& name) {
    ASSERT_OK(SaveDecoder(decoder, dir_.File(name)));
  }
  // Saves an adapter of the model "start" as "adapter"; with saves_modules, it has a norm and the
  // embedding, too.
  std::unique_ptr<Decoder> SaveAdapter(bool saves_modules) {
    DecoderOptions options = {.device = "cpu", .requires_grad = true};
    options.lora.emplace();
    options.lora->config.rank = 4;
    options.lora->config.alpha = 8;
    options.lora->config.target_modules = {"q_proj", "down_proj"};
    if (saves_modules) options.lora->config.modules_to_save = {"model.norm", "embed_tokens"};
    options.lora->seed = saves_modules ? 5 : 6;
    auto student = LoadDecoder(dir_.File("start"), options).value();
    {
      const at::NoGradGuard no_grad;
      for (const auto& [parameter_name, matrix] : student->TrainedParameters())
        at::Tensor(matrix).add_(0.1);  // B is 0 at first
    }
    std::filesystem::remove_all(dir_.File("adapter"));
    Save(*student, "adapter");
    return student;
  }
  absl::StatusOr<std::unique_ptr<StagedWeights>> StageAdapter(EngineWeights* weights,
                                                              const Decoder& student) {
    return weights->Stage(dir_.File("adapter"), SumsOf(SnapshotOf(student, false).parameters));
  }
  TempDir dir_;
};

TEST_F(DecoderWeightsTest, TheEngineComputesWithTheNewWeightsBitForBit) {
  for (const char* const dtype : {"float32", "bfloat16"}) {
    for (const bool is_tied : {false, true}) {
      SCOPED_TRACE(Concat(dtype, is_tied ? ", tied" : ""));
      ModelConfig config = SmallConfig();
      config.tie_word_embeddings = is_tied;
      std::filesystem::remove_all(dir_.File("start"));
      Save(*RandomModel(config, 1, dtype), "start");
      const LoadedEngine engine = Load("start", /*takes_weights=*/true);
      for (const uint64_t seed : {2, 3, 4}) {
        RunAll(engine.engine.get(), Requests());  // fills the prefix cache with old keys
        const auto model = RandomModel(config, seed, dtype);
        const std::string name = Concat(dtype, is_tied, seed);
        Save(*model, name);
        ASSERT_OK_AND_ASSIGN(const auto staged,
                             engine.weights->Stage(dir_.File(name), SumsOf(model->Parameters())));
        ASSERT_OK(staged->Apply());
        const LoadedEngine fresh = Load(name);
        ExpectSameAnswers(engine.engine.get(), fresh.engine.get());
        // Mapped files stay readable.
        std::filesystem::remove_all(dir_.File(name));
        RunAll(engine.engine.get(), Requests());
      }
    }
  }
}

TEST_F(DecoderWeightsTest, OnlyChangedTensorsAreReplaced) {
  const auto model = RandomModel(SmallConfig(), 1);
  Save(*model, "start");
  const LoadedEngine engine = Load("start", /*takes_weights=*/true);
  const auto set = [&](const std::string& name) -> int64_t {
    Save(*model, name);
    const auto staged = engine.weights->Stage(dir_.File(name), SumsOf(model->Parameters())).value();
    EXPECT_OK(staged->Apply());
    return staged->num_changed();
  };
  const auto all = static_cast<int64_t>(model->Parameters().size());
  EXPECT_EQ(set("first"), all);  // the sums of the start are not known
  EXPECT_EQ(set("same"), 0);
  for (const auto& [name, tensor] : model->Parameters()) {
    if (name.find("layers.1.mlp.down_proj") != std::string::npos) at::Tensor(tensor).mul_(2);
    if (name == "model.norm.weight") at::Tensor(tensor).add_(0.5);
  }
  EXPECT_EQ(set("two"), 2);
  const LoadedEngine fresh = Load("two");
  ExpectSameAnswers(engine.engine.get(), fresh.engine.get());
}

TEST_F(DecoderWeightsTest, DamagedOrOtherWeightsAreRefusedByName) {
  const ModelConfig config = SmallConfig();
  Save(*RandomModel(config, 1), "start");
  const auto model = RandomModel(config, 2);
  Save(*model, "new");
  const std::vector<TensorSum> sums = SumsOf(model->Parameters());
  const LoadedEngine engine = Load("start", /*takes_weights=*/true);
  const LoadedEngine untouched = Load("start");
  const auto error = [&](const std::string& name, const std::vector<TensorSum>& of) {
    return engine.weights->Stage(dir_.File(name), of).status();
  };
  EXPECT_ERROR(error("absent", sums), kNotFound, "absent");
  std::vector<TensorSum> fewer = sums;
  fewer.pop_back();
  EXPECT_ERROR(error("new", fewer), kInvalidArgument, "the checksum of tensor");
  std::vector<TensorSum> more = sums;
  more.push_back({"other", ""});
  EXPECT_ERROR(error("new", more), kInvalidArgument, "checksums are given for");

  // One flipped bit anywhere among the numbers, two tensors exchanged, and a file that ends early.
  const std::string path = dir_.File("new/model.safetensors");
  const std::string whole = ReadFile(path);
  for (const double place : {0.5, 0.75, 0.999}) {
    std::string damaged = whole;
    damaged[static_cast<size_t>(static_cast<double>(whole.size()) * place)] ^= 1;
    WriteFile(path, damaged);
    EXPECT_ERROR(error("new", sums), kDataLoss, "has the checksum");
  }
  WriteFile(path, whole.substr(0, whole.size() - 8));
  EXPECT_EQ(error("new", sums).code(), kDataLoss) << error("new", sums);
  WriteFile(path, whole);
  std::vector<TensorSum> exchanged = sums;
  std::swap(exchanged[3].sha256, exchanged[4].sha256);
  EXPECT_ERROR(error("new", exchanged), kDataLoss, "has the checksum");

  ModelConfig other = config;
  other.rms_norm_eps = 1e-3;
  const auto other_model = RandomModel(other, 2);
  Save(*other_model, "other");
  EXPECT_ERROR(error("other", SumsOf(other_model->Parameters())), kFailedPrecondition,
               "config.json");
  const auto half = RandomModel(config, 2, "bfloat16");
  Save(*half, "half");
  EXPECT_ERROR(error("half", SumsOf(half->Parameters())), kFailedPrecondition, "bfloat16");
  ExpectSameAnswers(engine.engine.get(), untouched.engine.get());
}

TEST_F(DecoderWeightsTest, AnAdapterIsMergedIntoTheBaseOfTheStart) {
  Save(*RandomModel(SmallConfig(), 1), "start");
  const LoadedEngine engine = Load("start", /*takes_weights=*/true);
  // The second adapter leaves the modules of the first one to the base again.
  for (const bool saves_modules : {true, false}) {
    const auto student = SaveAdapter(saves_modules);
    ASSERT_OK_AND_ASSIGN(const auto staged, StageAdapter(engine.weights.get(), *student));
    EXPECT_EQ(staged->num_changed(), 2 * SmallConfig().num_hidden_layers + 2);
    ASSERT_OK(staged->Apply());
    const auto fresh = MakeEngine(std::shared_ptr<Decoder>(student.get(), [](auto*) {}));
    ExpectSameAnswers(engine.engine.get(), fresh.get());
  }
}

TEST_F(DecoderWeightsTest, AnAdapterLeavesNothingBehindWhereWeightsAreWrittenInPlace) {
  Save(*RandomModel(SmallConfig(), 1), "start");
  for (const bool fails : {false, true}) {
    InPlaceDecoder used(RandomModel(SmallConfig(), 1)), fresh(RandomModel(SmallConfig(), 1));
    const auto weights = MakeDecoderWeights(std::shared_ptr<Decoder>(&used, [](auto*) {}));
    const auto fresh_weights = MakeDecoderWeights(std::shared_ptr<Decoder>(&fresh, [](auto*) {}));
    const auto first = SaveAdapter(/*saves_modules=*/true);
    ASSERT_OK_AND_ASSIGN(const auto staged_first, StageAdapter(weights.get(), *first));
    used.fails = fails;
    EXPECT_EQ(staged_first->Apply().ok(), !fails);
    used.fails = false;
    const auto second = SaveAdapter(/*saves_modules=*/false);
    for (EngineWeights* const target : {weights.get(), fresh_weights.get()}) {
      ASSERT_OK_AND_ASSIGN(const auto staged, StageAdapter(target, *second));
      ASSERT_OK(staged->Apply());
    }
    const auto found = used.Parameters(), expected = fresh.Parameters();
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(at::equal(found[i].second, expected[i].second)) << expected[i].first;
  }
}

}  // namespace
}  // namespace taopd::testing
