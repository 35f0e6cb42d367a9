#include "trainer/student/self_teacher.h"

#include <utility>
#include <vector>

#include "common/engine/torch_engine.h"
#include "common/model/weights/weights.h"
#include "trainer/dist/gather_pieces.h"

namespace taopd {

SelfTeacher::SelfTeacher(SelfTeacherOptions options, const Student* student, ProcessGroup* group)
    : options_(std::move(options)), student_(student), group_(group) {}

absl::StatusOr<EngineTeacherClient::Started> SelfTeacher::Start() {
  const ModelConfig& config = student_->decoder->config();
  EngineOptions engine = options_.engine;
  if (engine.max_model_len > config.max_position_embeddings) {
    return InvalidArgument(
        "the longest of data.max_teacher_prompt_length and data.max_prompt_length that is sent, + "
        "data.max_response_length = ",
        engine.max_model_len, " exceeds the student's max_position_embeddings ",
        config.max_position_embeddings);
  }
  engine.max_dense_vocab_size = config.vocab_size;
  EngineTeacherClient::Started started;
  if (options_.weights == TeacherWeights::kLive) {
    if (decoder_ == nullptr) decoder_ = student_->decoder;
  } else if (has_average()) {
    // The values are those of the average; the files of the start may be gone.
    DecoderOptions decoder;
    decoder.dtype = ConfigDtype(student_->decoder->dtype());
    decoder.device = student_->decoder->device().str();
    decoder_ = student_->decoder->WithOwnAdapters();
    if (decoder_ == nullptr) {
      TAOPD_ASSIGN_OR_RETURN(decoder_, MakeDecoder(config, decoder, RandomStream(0)));
    }
    TAOPD_RETURN_IF_ERROR(LoadAverage());
  } else {
    auto start = LoadStudent(options_.model_dir, options_.dtype, options_.device, nullptr,
                             options_.tokenizer_dir);
    if (!start.ok()) return Annotate(start.status(), "teacher.weights = start: student.model");
    decoder_ = start->decoder;
    TAOPD_ASSIGN_OR_RETURN(started.info.revision, WeightsRevision(*decoder_));
  }
  const bool is_start = !started.info.revision.empty();
  if (!is_start) started.info.revision = NameOf(options_.weights);
  TAOPD_ASSIGN_OR_RETURN(started.engine, MakeTorchEngine(decoder_, engine));
  if (is_start) {
    decoder_->PrepareInference();
    decoder_->KeepForInferenceOnly();
  }
  TeacherInfo& info = started.info;
  const EngineLimits limits = started.engine->limits();
  info.model_name = "self";
  if (student_->tokenizer != nullptr) info.tokenizer_hash = student_->tokenizer->hash();
  info.eos_token_ids = config.eos_token_ids;
  info.head_vocab_size = limits.vocab_size;
  info.max_model_len = limits.max_model_len;
  info.max_top_k = limits.max_logprobs;
  info.max_candidates = limits.max_candidates;
  info.max_dense_vocab_size = limits.max_dense_vocab_size;
  info.supports_temperature = true;
  // The cache identifies weights by a revision, which weights that change do not have.
  info.has_stable_scores = is_start;
  return started;
}

absl::Status SelfTeacher::StepDone(int64_t step) {
  const bool is_refreshed = options_.refresh_every > 0 && step % options_.refresh_every == 0;
  if (options_.weights != TeacherWeights::kEma && !is_refreshed) return absl::OkStatus();
  student_->optimizer->UpdateAverage(is_refreshed ? 0 : options_.ema);
  return LoadAverage();
}

absl::Status SelfTeacher::LoadAverage() {
  if (!has_average()) return absl::OkStatus();
  const AdamW& optimizer = *student_->optimizer;
  const std::vector<NamedParameter> parameters = decoder_->TrainedParameters();
  const auto mine = [&](const ParameterPiece& piece) { return optimizer.AverageOf(piece); };
  const auto all = [&](const ParameterPiece& piece) {
    return parameters[piece.position].second.view({-1}).narrow(0, piece.offset, piece.size);
  };
  return GatherPieces(optimizer.layout(), group_, GatherOptions(parameters), mine, all);
}

}  // namespace taopd
