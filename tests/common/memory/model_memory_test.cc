// The numbers were worked out from the configurations by hand; the parameters of the published
// models are known.
#include "common/memory/model_memory.h"

#include "kernels/cpu/gemm/packed_gemm.h"
#include "tests/common/memory/public_configs.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

// Plans know nothing of the CPU kernels, so they repeat this number.
static_assert(kPanelOutputs == cpu::kPanelOutputs);

constexpr DataType kBf16 = DataType::kBFloat16;

struct PublicModel {
  const char* json;
  int64_t parameters, embedding, head, projections, vectors;
  int64_t kv_bytes_per_token;     // bfloat16
  int64_t packed_head_bytes;      // bfloat16
  int64_t activation_bytes_8192;  // bfloat16, on the CPU
};

const PublicModel kModels[] = {
    {kQwen3_0_6b, 596049920, 155582464, 0, 440401920, 65536, 114688, 233373696, 239206400},
    {kQwen3_1_7b, 1720574976, 311164928, 0, 1409286144, 123904, 114688, 466747392, 474087424},
    {kQwen3_8b, 8190735360, 622329856, 622329856, 6945767424, 308224, 147456, 933494784, 943849472},
    {kQwen3_30b, 30532122624, 311164928, 311164928, 29909581824, 210944, 98304, 466747392,
     417464320},
    {kLlama31_8b, 8030261248, 525336576, 525336576, 6979321856, 266240, 131072, 788004864,
     1044512768},
};

TEST(ModelMemory, PublishedModels) {
  for (const PublicModel& model : kModels) {
    const ModelConfig config = PublicConfig(model.json);
    const WeightCounts counts = CountWeights(config);
    EXPECT_EQ(config.NumParameters(), model.parameters) << model.json;
    EXPECT_EQ(counts.embedding, model.embedding) << model.json;
    EXPECT_EQ(counts.head, model.head) << model.json;
    EXPECT_EQ(counts.projections, model.projections) << model.json;
    EXPECT_EQ(counts.vectors, model.vectors) << model.json;
    EXPECT_EQ(config.KvBytesPerToken(2), model.kv_bytes_per_token) << model.json;
    // All outputs are multiples of 64: the copy takes 12 bits for each number.
    EXPECT_EQ(2 * PackedProjectionBytes(config, kBf16), 3 * model.projections) << model.json;
    EXPECT_EQ(PackedHeadBytes(config, kBf16), model.packed_head_bytes) << model.json;
    EXPECT_EQ(ActivationBytes(config, 8192, kBf16, /*on_cpu=*/true), model.activation_bytes_8192)
        << model.json;
  }
}

// H 6, one head of 4, I 10, V 7: nothing is a multiple of a panel's 64 outputs.
ModelConfig OddConfig() {
  return PublicConfig(R"({
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 6,
    "head_dim": 4, "intermediate_size": 11, "num_hidden_layers": 3, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 67, "max_position_embeddings": 64,
    "tie_word_embeddings": false})");
}

TEST(ModelMemory, PacksInWholePanels) {
  const ModelConfig config = OddConfig();
  // q k v: 16 outputs of 6 inputs; o: 6 of 8; gate up: 22 of 6; down: 6 of 11.
  EXPECT_EQ(PackedProjectionBytes(config, DataType::kFloat32), 3 * 64 * (6 + 8 + 6 + 11) * 4);
  // bfloat16 in pairs: 11 inputs take the room of 12.
  EXPECT_EQ(PackedProjectionBytes(config, kBf16), 3 * 64 * (6 + 8 + 6 + 12) * 3 / 2);
  EXPECT_EQ(PackedHeadBytes(config, kBf16), 128 * 6 * 3 / 2);
  // float16 is computed in float32.
  EXPECT_EQ(PackedProjectionBytes(config, DataType::kFloat16),
            PackedProjectionBytes(config, DataType::kFloat32));
  EXPECT_EQ(PackedHeadBytes(config, DataType::kFloat16), 128 * 6 * 4);
}

TEST(ModelMemory, ActivationsAreThoseOfTheWidestBlock) {
  ModelConfig config = OddConfig();  // H 6, Q 8, K 4, I 11, D 4
  // MLP: 5 H + 3 I = 63 values, against 3 H + 3 Q + 3 K = 54 of attention.
  EXPECT_EQ(ActivationBytes(config, 1, DataType::kFloat32, true), 63 * 4 + 16 + 8 * 4);
  config.intermediate_size = 4;  // MLP 42: attention is the widest
  EXPECT_EQ(ActivationBytes(config, 10, DataType::kFloat32, true), 10 * (54 * 4 + 16 + 8 * 4));
  // float16 on the CPU: the q k v product's 6 inputs and 16 outputs in float32, too.
  EXPECT_EQ(ActivationBytes(config, 1, DataType::kFloat16, true),
            54 * 2 + 16 + 8 * 2 + (6 + 16) * 4);
  EXPECT_EQ(ActivationBytes(config, 1, DataType::kFloat16, false), 54 * 2 + 16 + 8 * 2);
}

TEST(ModelMemory, ExpertsAreComputedInTurnOrGrouped) {
  const ModelConfig config = PublicConfig(kQwen3_30b);
  // 4 H in bfloat16, 128 logits and probabilities, then for 8 experts a row 3 I' + 4 H.
  const int64_t grouped = 4 * 2048 * 2 + 128 * (2 + 4) + 8 * (3 * 768 + 4 * 2048) * 2;
  EXPECT_EQ(ActivationBytes(config, 1, kBf16, /*on_cpu=*/false), grouped + 16 + 2 * 128 * 2);
  const int64_t in_turn = 4 * 2048 * 4 + 128 * (4 + 4) + 2 * 2048 * 4 + (3 * 768 + 3 * 2048) * 4;
  EXPECT_EQ(ActivationBytes(config, 1, DataType::kFloat32, /*on_cpu=*/false),
            in_turn + 16 + 2 * 128 * 4);
}

}  // namespace
}  // namespace taopd::testing
