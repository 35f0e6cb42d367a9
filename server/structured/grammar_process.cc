#include "server/structured/grammar_process.h"

#include <absl/time/clock.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "server/structured/wire.h"

namespace taopd {
namespace {

// Clocks run on while a machine is too busy for a process: more than its time on the processor.
constexpr absl::Duration kMaxCompileWait = absl::Seconds(60);
constexpr absl::Duration kMaxMaskWait = absl::Seconds(10);

// What the end of a process says of its grammar.
absl::Status EndOf(GrammarOp op, const char* doing) {
  switch (op) {
    case GrammarOp::kTimedOut:
      return InvalidArgument("it takes too long to ", doing);
    case GrammarOp::kOutOfMemory:
      return InvalidArgument("it takes too much memory to ", doing);
    default:
      return Internal("unexpected message from the grammar's process");
  }
}

}  // namespace

// One text. The engine calls it from one thread at a time.
class GrammarMask final : public LogitMask {
 public:
  GrammarMask(std::shared_ptr<Grammar> grammar, const std::vector<int32_t>& stop_ids)
      : grammar_(std::move(grammar)), sequence_(grammar_->Open(stop_ids)) {}
  ~GrammarMask() override { grammar_->Close(sequence_); }

  absl::StatusOr<bool> Mask(std::span<const int32_t> generated_ids,
                            std::span<uint64_t> allowed_bits) override {
    Prepare(generated_ids);
    TAOPD_ASSIGN_OR_RETURN(const std::string reply, grammar_->Await(sequence_, position_));
    FrameReader reader(reply);
    switch (reader.Take<MaskState>()) {
      case MaskState::kAllAllowed:
        return false;
      case MaskState::kFailed:
        return InvalidArgument("structured output: ", reader.TakeRest());
      case MaskState::kRestricts:
        break;
    }
    const std::string_view bits = reader.TakeRest();
    if (bits.size() != allowed_bits.size_bytes()) {
      return Internal("a mask of ", bits.size(), " bytes, expected ", allowed_bits.size_bytes());
    }
    std::memcpy(allowed_bits.data(), bits.data(), bits.size());
    return true;
  }

  void Prepare(std::span<const int32_t> generated_ids) override {
    // Sequences that are computed again keep what they have generated, so it only grows.
    if (generated_ids.size() <= position_) return;
    const std::span<const int32_t> new_ids = generated_ids.subspan(position_);
    position_ = static_cast<uint32_t>(generated_ids.size());
    grammar_->Advance(sequence_, position_, new_ids);
  }

 private:
  const std::shared_ptr<Grammar> grammar_;
  const uint32_t sequence_;
  uint32_t position_ = 0;  // the mask that was asked for last
};

absl::StatusOr<std::shared_ptr<Grammar>> Grammar::Compile(int fd, const GrammarSpec& spec,
                                                          std::vector<int32_t> eos_ids) {
  std::shared_ptr<Grammar> grammar(new Grammar(fd, std::move(eos_ids)));
  FrameWriter compile(GrammarOp::kCompile);
  compile.Add(spec.kind).Add(uint8_t{spec.any_whitespace}).AddIds(grammar->eos_ids_);
  compile.AddRest(spec.text);
  TAOPD_RETURN_IF_ERROR(SendFrame(fd, compile.bytes()));
  auto answer = ReceiveFrame(fd, absl::Now() + kMaxCompileWait);
  if (absl::IsDeadlineExceeded(answer.status()))
    return Unavailable("the machine is too busy to compile it");
  // A crash of the compiler is the grammar's fault.
  if (!answer.ok() || !*answer) return InvalidArgument("the compiler cannot handle it");
  FrameReader reader(**answer);
  const auto op = reader.Take<GrammarOp>();
  if (op != GrammarOp::kCompiled) return EndOf(op, "compile");
  const auto code = static_cast<absl::StatusCode>(reader.Take<int32_t>());
  if (code != absl::StatusCode::kOk) return absl::Status(code, std::string(reader.TakeRest()));
  return grammar;
}

std::shared_ptr<LogitMask> Grammar::NewMask(std::shared_ptr<Grammar> grammar,
                                            const std::vector<int32_t>& stop_ids) {
  return std::make_shared<GrammarMask>(std::move(grammar), stop_ids);
}

bool Grammar::is_alive() const {
  absl::MutexLock lock(&mutex_);
  return status_.ok();
}

uint32_t Grammar::Open(const std::vector<int32_t>& stop_ids) {
  std::vector<int32_t> ids = eos_ids_;
  ids.insert(ids.end(), stop_ids.begin(), stop_ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  absl::MutexLock lock(&mutex_);
  const uint32_t sequence = num_opened_++;
  replies_[sequence].position = UINT32_MAX;
  SendLocked(FrameWriter(GrammarOp::kOpen).Add(sequence).AddIds(ids).bytes());
  return sequence;
}

void Grammar::Close(uint32_t sequence) {
  absl::MutexLock lock(&mutex_);
  replies_.erase(sequence);
  SendLocked(FrameWriter(GrammarOp::kClose).Add(sequence).bytes());
}

void Grammar::Advance(uint32_t sequence, uint32_t position, std::span<const int32_t> ids) {
  absl::MutexLock lock(&mutex_);
  SendLocked(FrameWriter(GrammarOp::kAdvance).Add(sequence).Add(position).AddIds(ids).bytes());
}

void Grammar::SendLocked(const std::string& frame) {
  if (!status_.ok()) return;
  // The process may be waiting for room for its answers: take them, so that it reads again.
  const absl::Time deadline = absl::Now() + kMaxMaskWait;
  while (status_.ok() && !TrySendFrame(fd_.get(), frame)) {
    const auto is_readable = AwaitReadableOrWritable(fd_.get(), deadline);
    absl::Status status = is_readable.status();
    if (status.ok() && *is_readable) status = ReceiveLocked(deadline);
    if (!status.ok()) status_ = status;
  }
}

// Takes one answer.
absl::Status Grammar::ReceiveLocked(absl::Time deadline) {
  auto frame = ReceiveFrame(fd_.get(), deadline);
  if (absl::IsDeadlineExceeded(frame.status()))
    return Unavailable("structured output: the grammar's process does not answer");
  if (!frame.ok() || !*frame) {
    return InvalidArgument(
        "structured output: the grammar's process has ended: the grammar cannot be followed");
  }
  FrameReader reader(**frame);
  const auto op = reader.Take<GrammarOp>();
  if (op != GrammarOp::kMask) return Annotate(EndOf(op, "follow"), "structured output");
  const auto found = replies_.find(reader.Take<uint32_t>());
  if (found == replies_.end()) return absl::OkStatus();  // closed meanwhile
  found->second.position = reader.Take<uint32_t>();
  found->second.frame = reader.TakeRest();
  return absl::OkStatus();
}

absl::StatusOr<std::string> Grammar::Await(uint32_t sequence, uint32_t position) {
  const absl::Time deadline = absl::Now() + kMaxMaskWait;
  // Others that wait take their answers from what this thread receives.
  absl::MutexLock lock(&mutex_);
  const Reply& reply = replies_.at(sequence);
  while (reply.position != position) {
    if (!status_.ok()) return status_;
    if (const absl::Status received = ReceiveLocked(deadline); !received.ok()) status_ = received;
  }
  return reply.frame;
}

}  // namespace taopd
