#include "trainer/student/self_teacher.h"

#include "common/engine/torch_engine.h"
#include "common/model/weights/weights.h"
#include "trainer/dist/gather_pieces.h"

namespace taopd {

absl::StatusOr<EngineTeacherClient::Started> SelfTeacher::Start() {
  const ModelConfig& config = student_->decoder->config();
  EngineOptions engine = options_.engine;
  if (engine.max_model_len > config.max_position_embeddings) {
    return InvalidArgument(
        "the longest prompt that the teacher is sent (data.max_teacher_prompt_length or "
        "data.max_prompt_length) and data.max_response_length are together ",
        engine.max_model_len, " tokens, which exceeds the student's max_position_embeddings ",
        config.max_position_embeddings);
  }
  engine.max_dense_vocab_size = config.vocab_size;
  TAOPD_RETURN_IF_ERROR(ChooseDecoder());
  EngineTeacherClient::Started started;
  TeacherInfo& info = started.info;
  // The cache identifies weights by a revision, which weights that change do not have.
  info.has_stable_scores = options_.weights != TeacherWeights::kLive && !has_average();
  info.revision = NameOf(options_.weights);
  if (info.has_stable_scores) {
    TAOPD_ASSIGN_OR_RETURN(info.revision, WeightsRevision(*decoder_));
  }
  TAOPD_ASSIGN_OR_RETURN(started.engine, MakeTorchEngine(decoder_, engine));
  if (info.has_stable_scores) {
    decoder_->PrepareInference();
    decoder_->KeepForInferenceOnly();
  }
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
  return started;
}

absl::Status SelfTeacher::ChooseDecoder() {
  const Decoder& student = *student_->decoder;
  if (options_.weights == TeacherWeights::kLive) {
    if (decoder_ == nullptr) decoder_ = student_->decoder;
    return absl::OkStatus();
  }
  if (!has_average()) {
    auto start = LoadStudent(options_.model_dir, options_.dtype, options_.device, nullptr,
                             options_.tokenizer_dir);
    if (!start.ok()) return Annotate(start.status(), "teacher.weights = start: student.model");
    decoder_ = start->decoder;
    return absl::OkStatus();
  }
  // The values are those of the average; the files of the start may be gone.
  decoder_ = student.WithOwnAdapters();
  if (decoder_ == nullptr) {
    const DecoderOptions options = {.dtype = ConfigDtype(student.dtype()),
                                    .device = student.device().str()};
    TAOPD_ASSIGN_OR_RETURN(decoder_, MakeDecoder(student.config(), options, RandomStream(0)));
  }
  return LoadAverage();
}

absl::Status SelfTeacher::UpdateAfterStep(int64_t step) {
  const bool is_refreshed = options_.refresh_every > 0 && step % options_.refresh_every == 0;
  if (options_.weights != TeacherWeights::kEma && !is_refreshed) return absl::OkStatus();
  student_->optimizer->UpdateAverage(is_refreshed ? 0 : options_.ema);
  return LoadAverage();
}

absl::Status SelfTeacher::LoadAverage() {
  if (!has_average()) return absl::OkStatus();
  const AdamW& optimizer = *student_->optimizer;
  return GatherPieces(optimizer.layout(), group_, decoder_->TrainedParameters(),
                      [&](const ParameterPiece& piece) { return optimizer.AverageOf(piece); });
}

}  // namespace taopd
