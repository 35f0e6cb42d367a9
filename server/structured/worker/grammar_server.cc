#include "server/structured/worker/grammar_server.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "server/structured/limits.h"
#include "server/structured/wire.h"
#include "server/structured/worker/json_string_filter.h"
#include "server/structured/worker/xgrammar.h"

namespace taopd {
namespace {

constexpr int kExitOk = 0;
constexpr int kExitFailed = 70;
constexpr int kRehearsedIds = 64;

int grammar_fd = -1;  // of this process, for its signal handler

// A frame of one byte, ready to be sent by what may not allocate.
void SendLastWord(GrammarOp op) {
  const uint32_t size = 1;
  char frame[sizeof(size) + 1];
  std::memcpy(frame, &size, sizeof(size));
  frame[sizeof(size)] = static_cast<char>(op);
  (void)!::send(grammar_fd, frame, sizeof(frame), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void EndTimedOut(int) {
  SendLastWord(GrammarOp::kTimedOut);
  ::_exit(kExitFailed);
}

// Ends the process when it has used so much of a processor, until the object goes.
class CpuLimit {
 public:
  explicit CpuLimit(int64_t limit_ms) { Set(limit_ms); }
  ~CpuLimit() { Set(0); }

 private:
  static void Set(int64_t ms) {
    itimerval timer = {};
    timer.it_value.tv_sec = ms / 1000;
    timer.it_value.tv_usec = ms % 1000 * 1000;
    ::setitimer(ITIMER_PROF, &timer, nullptr);
  }
};

double CpuMilliseconds() {
  timespec now = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

int64_t AddressSpaceBytes() {
  long pages = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  if (std::fscanf(file, "%ld", &pages) != 1) pages = 0;
  std::fclose(file);
  return pages * ::sysconf(_SC_PAGESIZE);
}

void LimitThisProcess(const GrammarLimits& limits) {
  const rlim_t bytes = static_cast<rlim_t>(AddressSpaceBytes() + limits.memory_bytes);
  const rlimit memory = {.rlim_cur = bytes, .rlim_max = bytes};
  ::setrlimit(RLIMIT_AS, &memory);
  const rlimit no_core = {.rlim_cur = 0, .rlim_max = 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  std::FILE* const file = std::fopen("/proc/self/oom_score_adj", "w");
  if (file != nullptr) {
    std::fputs("1000", file);
    std::fclose(file);
  }
  // The library warns of what clients send; the server's log is not theirs to fill.
  const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (null >= 0) ::dup2(null, STDERR_FILENO);
  struct sigaction action = {};
  action.sa_handler = EndTimedOut;
  ::sigaction(SIGPROF, &action, nullptr);
  // tvm-ffi's handler prints where a crash was; the server says what crashed.
  ::signal(SIGSEGV, SIG_DFL);
}

// What the processes share: made once, before they are forked.
struct Vocabulary {
  GrammarLimits limits;
  std::vector<std::string> token_bytes;
  std::unique_ptr<GrammarLibrary> library;
  JsonStringFilter json_filter;

  int64_t size() const { return static_cast<int64_t>(token_bytes.size()); }
};

// One text under a grammar.
class Text {
 public:
  // With `is_json`, bytes that JSON forbids in strings are forbidden, too.
  Text(std::unique_ptr<GrammarMatcher> matcher, bool is_json, const Vocabulary* vocabulary)
      : matcher_(std::move(matcher)), is_json_(is_json), vocabulary_(vocabulary) {}

  // Behind the end everything is allowed.
  absl::Status Accept(int32_t id) {
    ++position_;
    if (matcher_->HasEnded()) return absl::OkStatus();
    TAOPD_RETURN_IF_ERROR(matcher_->Accept(id));
    if (is_json_ && id >= 0 && id < vocabulary_->size())
      json_.Push(std::string_view(vocabulary_->token_bytes[id]));
    return absl::OkStatus();
  }
  // As GrammarMatcher::Fill.
  absl::StatusOr<bool> Fill(std::vector<uint64_t>* bits) {
    if (matcher_->HasEnded()) return false;
    bits->assign((static_cast<size_t>(vocabulary_->size()) + 63) / 64, ~uint64_t{0});
    TAOPD_ASSIGN_OR_RETURN(const bool restricts, matcher_->Fill(*bits));
    if (is_json_) vocabulary_->json_filter.Apply(json_.place(), *bits);
    return restricts || is_json_;
  }
  bool HasEnded() const { return matcher_->HasEnded(); }
  uint32_t position() const { return position_; }  // ids accepted

 private:
  std::unique_ptr<GrammarMatcher> matcher_;
  const bool is_json_;
  const Vocabulary* const vocabulary_;
  JsonStringState json_;
  uint32_t position_ = 0;
};

// One grammar and the texts under it.
class GrammarProcess {
 public:
  GrammarProcess(int fd, const Vocabulary* vocabulary) : fd_(fd), vocabulary_(vocabulary) {}

  int Run() {
    if (!SendFrame(fd_, FrameWriter(GrammarOp::kHello).bytes()).ok()) return kExitOk;
    for (;;) {
      const auto frame = ReceiveFrame(fd_, absl::InfiniteFuture());
      if (!frame.ok() || !*frame) return kExitOk;
      try {
        if (!Answer(**frame).ok()) return kExitFailed;
      } catch (const std::bad_alloc&) {
        SendLastWord(GrammarOp::kOutOfMemory);
        return kExitFailed;
      }
    }
  }

 private:
  absl::Status Answer(std::string_view frame) {
    FrameReader reader(frame);
    switch (reader.Take<GrammarOp>()) {
      case GrammarOp::kCompile:
        return AnswerCompile(reader);
      case GrammarOp::kOpen:
        return AnswerOpen(reader);
      case GrammarOp::kAdvance:
        return AnswerAdvance(reader);
      case GrammarOp::kClose:
        texts_.erase(reader.Take<uint32_t>());
        return absl::OkStatus();
      default:
        return DataLoss("unknown message");
    }
  }

  absl::Status AnswerCompile(FrameReader& reader) {
    GrammarSpec spec;
    spec.kind = reader.Take<GrammarSpec::Kind>();
    spec.any_whitespace = reader.Take<uint8_t>() != 0;
    eos_ids_ = TakeIds(reader);
    spec.text = reader.TakeRest();
    if (!reader.ok()) return DataLoss("short message");
    const absl::Status status = Compile(spec);
    FrameWriter answer(GrammarOp::kCompiled);
    answer.Add(static_cast<int32_t>(status.code())).AddRest(std::string(status.message()));
    return SendFrame(fd_, answer.bytes());
  }

  absl::Status Compile(const GrammarSpec& spec) {
    const CpuLimit limit(vocabulary_->limits.compile_cpu_ms);
    is_json_ = spec.kind == GrammarSpec::Kind::kJsonSchema;
    TAOPD_ASSIGN_OR_RETURN(grammar_, vocabulary_->library->Compile(spec));
    return Rehearse();
  }

  // Follows the grammar at random for some ids, and refuses one whose masks take long: in earnest
  // they would hold the engine up.
  absl::Status Rehearse() {
    TAOPD_ASSIGN_OR_RETURN(std::unique_ptr<Text> text, NewText(eos_ids_));
    uint64_t random = 1;
    for (int i = 0; i < kRehearsedIds && !text->HasEnded(); ++i) {
      const double begun_ms = CpuMilliseconds();
      TAOPD_RETURN_IF_ERROR(text->Fill(&bits_).status());
      random = random * 6364136223846793005u + 1442695040888963407u;
      const int64_t id = AllowedId(random >> 33);
      if (id < 0) {
        return InvalidArgument(i == 0 ? "no text of this vocabulary satisfies it"
                                      : "it leads to a dead end: no token may follow there");
      }
      TAOPD_RETURN_IF_ERROR(text->Accept(static_cast<int32_t>(id)));
      if (CpuMilliseconds() - begun_ms >
          static_cast<double>(vocabulary_->limits.rehearsed_mask_cpu_ms))
        return InvalidArgument("it takes too long to follow");
    }
    return absl::OkStatus();
  }

  // One of the allowed ids; -1 if there is none.
  int64_t AllowedId(uint64_t random) const {
    const auto vocab_size = static_cast<uint64_t>(vocabulary_->size());
    for (uint64_t i = 0; i < vocab_size; ++i) {
      const uint64_t id = (random + i) % vocab_size;
      if ((bits_[id / 64] >> (id % 64) & 1) != 0) return static_cast<int64_t>(id);
    }
    return -1;
  }

  absl::Status AnswerOpen(FrameReader& reader) {
    const auto sequence = reader.Take<uint32_t>();
    const std::vector<int32_t> stop_ids = TakeIds(reader);
    if (!reader.ok() || grammar_ == nullptr) return DataLoss("short message");
    const CpuLimit limit(vocabulary_->limits.mask_cpu_ms);
    auto text = NewText(stop_ids);
    if (!text.ok()) return SendMaskError(sequence, 0, text.status());
    texts_[sequence] = *std::move(text);
    return SendMask(sequence, *texts_[sequence]);
  }

  absl::Status AnswerAdvance(FrameReader& reader) {
    const auto sequence = reader.Take<uint32_t>();
    const auto position = reader.Take<uint32_t>();
    const std::vector<int32_t> ids = TakeIds(reader);
    const auto found = texts_.find(sequence);
    if (!reader.ok() || found == texts_.end()) return DataLoss("unknown sequence");
    Text& text = *found->second;
    const CpuLimit limit(vocabulary_->limits.mask_cpu_ms);
    for (const int32_t id : ids) {
      const absl::Status accepted = text.Accept(id);
      if (!accepted.ok()) return SendMaskError(sequence, position, accepted);
    }
    if (text.position() != position) return DataLoss("positions differ");
    return SendMask(sequence, text);
  }

  absl::Status SendMask(uint32_t sequence, Text& text) {
    FrameWriter answer(GrammarOp::kMask);
    answer.Add(sequence).Add(text.position());
    const auto restricts = text.Fill(&bits_);
    if (!restricts.ok()) return SendMaskError(sequence, text.position(), restricts.status());
    answer.Add(*restricts ? MaskState::kRestricts : MaskState::kAllAllowed);
    if (*restricts) {
      answer.AddRest({reinterpret_cast<const char*>(bits_.data()), 8 * bits_.size()});
    }
    return SendFrame(fd_, answer.bytes());
  }

  absl::Status SendMaskError(uint32_t sequence, uint32_t position, const absl::Status& status) {
    FrameWriter answer(GrammarOp::kMask);
    answer.Add(sequence)
        .Add(position)
        .Add(MaskState::kFailed)
        .AddRest(std::string(status.message()));
    return SendFrame(fd_, answer.bytes());
  }

  absl::StatusOr<std::unique_ptr<Text>> NewText(const std::vector<int32_t>& stop_ids) const {
    TAOPD_ASSIGN_OR_RETURN(auto matcher, grammar_->NewMatcher(stop_ids));
    return std::make_unique<Text>(std::move(matcher), is_json_, vocabulary_);
  }

  static std::vector<int32_t> TakeIds(FrameReader& reader) {
    std::vector<int32_t> ids;
    const auto size = reader.Take<uint32_t>();
    for (uint32_t i = 0; i < size && reader.ok(); ++i) ids.push_back(reader.Take<int32_t>());
    return ids;
  }

  const int fd_;
  const Vocabulary* const vocabulary_;
  std::unique_ptr<CompiledGrammar> grammar_;
  bool is_json_ = false;
  std::vector<int32_t> eos_ids_;
  std::map<uint32_t, std::unique_ptr<Text>> texts_;
  std::vector<uint64_t> bits_;
};

absl::StatusOr<Vocabulary> ReceiveVocabulary(int fd) {
  TAOPD_ASSIGN_OR_RETURN(const auto frame, ReceiveFrame(fd, absl::InfiniteFuture()));
  if (!frame) return Unavailable("closed");
  FrameReader reader(*frame);
  if (reader.Take<GrammarOp>() != GrammarOp::kVocabulary) return DataLoss("no vocabulary");
  const auto limits = reader.Take<GrammarLimits>();
  std::vector<int32_t> eos_ids(reader.Take<uint32_t>());
  for (int32_t& id : eos_ids) id = reader.Take<int32_t>();
  std::vector<std::string> token_bytes(reader.Take<uint32_t>());
  for (std::string& bytes : token_bytes) bytes = reader.TakeText();
  if (!reader.ok()) return DataLoss("the vocabulary is short");
  TAOPD_ASSIGN_OR_RETURN(auto library, GrammarLibrary::Load(token_bytes, eos_ids));
  JsonStringFilter json_filter(token_bytes);
  return Vocabulary{limits, std::move(token_bytes), std::move(library), std::move(json_filter)};
}

}  // namespace

int RunGrammarServer(int fd) {
  // Connections and secrets of the server are not for what clients send.
  ::close_range(static_cast<unsigned>(fd) + 1, ~0u, 0);
  // The server decides when this process ends, also when a terminal signals the whole group.
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(number, SIG_IGN);
  ::signal(SIGCHLD, SIG_IGN);  // nobody waits for the copies
  const auto vocabulary = ReceiveVocabulary(fd);
  FrameWriter ready(GrammarOp::kCompiled);
  ready.Add(static_cast<int32_t>(vocabulary.status().code()))
      .AddRest(std::string(vocabulary.status().message()));
  if (!SendFrame(fd, ready.bytes()).ok() || !vocabulary.ok()) return kExitFailed;
  for (;;) {
    const auto descriptor = ReceiveDescriptor(fd);
    if (!descriptor.ok()) return kExitFailed;
    if (*descriptor < 0) return kExitOk;
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(fd);
      grammar_fd = *descriptor;
      LimitThisProcess(vocabulary->limits);
      ::_exit(GrammarProcess(*descriptor, &*vocabulary).Run());
    }
    ::close(*descriptor);  // the server sees its end if there was no fork
  }
}

}  // namespace taopd
