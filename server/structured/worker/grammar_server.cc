// taopd-grammar: the part of taopd-teacher that compiles grammars and computes masks of the ids
// that may come next (wire.h), as a process of its own. Only the teacher starts it.
//
// Only this process parses, compiles and matches what clients send. It runs in a sandbox
// (sandbox.h), so that no grammar can hurt the server. The main thread reads, one thread compiles
// and one computes masks, so that the server's messages are read even during a long compilation.
//
// A compilation or a mask that takes too long, or crashes, ends the process with a crash report.
// One that runs out of memory fails alone.
#include <absl/synchronization/blocking_counter.h>
#include <absl/synchronization/mutex.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <iostream>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/exit_code.h"
#include "server/structured/limits.h"
#include "server/structured/wire.h"
#include "server/structured/worker/grammar_queue.h"
#include "server/structured/worker/job_guard.h"
#include "server/structured/worker/matched_text.h"
#include "server/structured/worker/sandbox.h"

namespace taopd {
namespace {

constexpr int kRehearsedIds = 64;
constexpr size_t kMaxFrameBytes = size_t{256} << 20;
constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kStackBytes = 16 << 20;  // per thread; the library is recursive

struct LoadedGrammar {
  std::optional<CompiledGrammar> compiled;
  bool is_json = false;

  absl::StatusOr<std::unique_ptr<MatchedText>> NewText(const std::vector<int32_t>& stop_ids,
                                                       const Vocabulary* vocabulary) const {
    TAOPD_ASSIGN_OR_RETURN(GrammarMatcher matcher, compiled->NewMatcher(stop_ids));
    return std::make_unique<MatchedText>(std::move(matcher), is_json, vocabulary);
  }
};

// Sends frames to the server, from several threads. Blocks while the socket is full; the server
// always reads.
class Sender {
 public:
  explicit Sender(int fd) : fd_(fd) {}

  void Send(const FrameWriter& frame) {
    const std::string bytes = Framed(frame.bytes());
    absl::MutexLock lock(&mutex_);
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n < 0 && errno != EINTR) ::_exit(kExitOk);  // the server is gone
      if (n > 0) sent += static_cast<size_t>(n);
    }
  }

 private:
  const int fd_;
  absl::Mutex mutex_;
};

FrameWriter CompiledFrame(uint64_t grammar_id, const absl::Status& status, int64_t num_bytes) {
  FrameWriter frame(GrammarOp::kCompiled);
  frame.Add(grammar_id).Add(static_cast<int32_t>(status.code())).Add(num_bytes);
  frame.AddRest(std::string(status.message()));
  return frame;
}

// Returns the answer to a request for a mask. The bits are sent if the mask restricts the ids.
FrameWriter MaskFrame(uint64_t text_id, uint64_t position, const absl::StatusOr<bool>& restricts,
                      const std::vector<uint64_t>& bits) {
  FrameWriter frame(GrammarOp::kMask);
  frame.Add(text_id).Add(position);
  if (!restricts.ok()) {
    frame.Add(MaskState::kFailed).AddRest(std::string(restricts.status().message()));
  } else if (!*restricts) {
    frame.Add(MaskState::kAllAllowed);
  } else {
    frame.Add(MaskState::kRestricts);
    frame.AddRest({reinterpret_cast<const char*>(bits.data()), 8 * bits.size()});
  }
  return frame;
}

// Matches some random ids against the grammar. Refuses it if a mask takes too long, or if no id can
// follow at the start or later.
absl::Status Rehearse(const LoadedGrammar& grammar, const Vocabulary& vocabulary,
                      const JobGuard& guard) {
  TAOPD_ASSIGN_OR_RETURN(const auto text, grammar.NewText(vocabulary.eos_ids, &vocabulary));
  std::vector<uint64_t> bits;
  const auto vocab_size = static_cast<uint64_t>(vocabulary.size());
  uint64_t random = 1;
  for (int i = 0; i < kRehearsedIds && !text->HasEnded(); ++i) {
    const double begun_ms = guard.ElapsedMs();
    TAOPD_RETURN_IF_ERROR(text->Fill(&bits).status());
    random = random * 6364136223846793005u + 1442695040888963407u;
    uint64_t num_tried = 0, id = 0;
    for (; num_tried < vocab_size; ++num_tried) {
      id = ((random >> 33) + num_tried) % vocab_size;
      if ((bits[id / 64] >> (id % 64) & 1) != 0) break;
    }
    if (num_tried == vocab_size) {
      return InvalidArgument(i == 0 ? "no text of this vocabulary satisfies it"
                                    : "it leads to a dead end: no token may follow there");
    }
    TAOPD_RETURN_IF_ERROR(text->Accept(static_cast<int32_t>(id)));
    if (guard.ElapsedMs() - begun_ms > static_cast<double>(vocabulary.limits.rehearsed_mask_cpu_ms))
      return InvalidArgument("it takes too long to match");
  }
  return absl::OkStatus();
}

class GrammarServer {
 public:
  GrammarServer(int fd, const Vocabulary* vocabulary) : vocabulary_(vocabulary), sender_(fd) {}

  // The loops of the two working threads, which end with the process.
  void CompileForever(JobGuard& guard) {
    for (;;) {
      std::string frame;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(
            +[](std::deque<std::string>* waiting) { return !waiting->empty(); }, &compiles_));
        frame = std::move(compiles_.front());
        compiles_.pop_front();
      }
      Compile(frame, guard);
    }
  }
  void MatchForever(JobGuard& guard) {
    for (;;) {
      std::pair<uint64_t, std::string> next;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(
            +[](GrammarQueue* waiting) { return !waiting->empty(); }, &matches_));
        next = matches_.Take();
      }
      const double cpu_ms = Match(next.first, next.second, guard);
      absl::MutexLock lock(&mutex_);
      matches_.Charge(next.first, cpu_ms);
    }
  }
  // Called by the thread that reads. Returns false for a frame that no server sends.
  bool Take(std::string&& frame) {
    FrameReader reader(frame);
    const auto op = reader.Read<GrammarOp>();
    const auto grammar_id = reader.Read<uint64_t>();
    if (!reader.ok()) return false;
    absl::MutexLock lock(&mutex_);
    if (op == GrammarOp::kCompile) {
      compiles_.push_back(std::move(frame));
    } else {
      matches_.Push(grammar_id, std::move(frame));
    }
    return true;
  }
  Sender& sender() { return sender_; }

 private:
  void Compile(const std::string& frame, JobGuard& guard) {
    FrameReader reader(frame);
    reader.Read<GrammarOp>();
    const auto id = reader.Read<uint64_t>();
    GrammarSpec spec;
    spec.kind = reader.Read<GrammarSpec::Kind>();
    spec.any_whitespace = reader.Read<uint8_t>() != 0;
    spec.text = reader.ReadRest();
    guard.Begin(id, 0, vocabulary_->limits.compile_cpu_ms);
    absl::StatusOr<std::shared_ptr<LoadedGrammar>> grammar;
    try {
      grammar = Load(spec, guard);
    } catch (const std::bad_alloc&) {
      grammar = InvalidArgument("it needs too much memory");
    }
    guard.End();
    const int64_t num_bytes = grammar.ok() ? (*grammar)->compiled->num_bytes() : 0;
    if (grammar.ok()) {
      absl::MutexLock lock(&mutex_);
      grammars_[id] = *grammar;
    }
    sender_.Send(CompiledFrame(id, grammar.status(), num_bytes));
  }

  // Compiles the grammar and checks that its size and its masks are within the limits.
  absl::StatusOr<std::shared_ptr<LoadedGrammar>> Load(const GrammarSpec& spec,
                                                      const JobGuard& guard) const {
    auto grammar = std::make_shared<LoadedGrammar>();
    grammar->is_json = spec.kind == GrammarSpec::Kind::kJsonSchema;
    TAOPD_ASSIGN_OR_RETURN(grammar->compiled, vocabulary_->library->Compile(spec));
    const int64_t num_bytes = grammar->compiled->num_bytes();
    if (num_bytes > vocabulary_->limits.compiled_bytes) {
      return InvalidArgument("it needs too much memory: ", num_bytes,
                             " bytes when compiled, the limit is ",
                             vocabulary_->limits.compiled_bytes);
    }
    TAOPD_RETURN_IF_ERROR(Rehearse(*grammar, *vocabulary_, guard));
    return grammar;
  }

  // Returns the processor time that it took, in milliseconds.
  double Match(uint64_t grammar_id, const std::string& frame, JobGuard& guard) {
    FrameReader reader(frame);
    const auto op = reader.Read<GrammarOp>();
    reader.Read<uint64_t>();
    if (op == GrammarOp::kForget) {
      absl::MutexLock lock(&mutex_);
      grammars_.erase(grammar_id);
      matches_.Forget(grammar_id);
      return 0.0;
    }
    const auto id = reader.Read<uint64_t>();
    if (op == GrammarOp::kClose) {
      texts_.erase(id);
      return 0.0;
    }
    guard.Begin(grammar_id, id, vocabulary_->limits.mask_cpu_ms);
    uint64_t position = 0;
    absl::StatusOr<bool> restricts = false;
    try {
      restricts = op == GrammarOp::kOpen ? Open(grammar_id, id, reader, &position)
                                         : Advance(id, reader, &position);
    } catch (const std::bad_alloc&) {
      restricts = InvalidArgument("it needs too much memory to match");
    }
    const double cpu_ms = guard.End();
    const auto text = texts_.find(id);
    if (restricts.ok() && text != texts_.end()) {
      if (absl::Status charged = text->second->Charge(cpu_ms); !charged.ok()) restricts = charged;
    }
    if (!restricts.ok()) texts_.erase(id);
    sender_.Send(MaskFrame(id, position, restricts, bits_));
    return cpu_ms;
  }

  absl::StatusOr<bool> Open(uint64_t grammar_id, uint64_t id, FrameReader& reader,
                            uint64_t* position) {
    const std::vector<int32_t> stop_ids = reader.ReadIds();
    const std::vector<int32_t> ids = reader.ReadIds();
    *position = ids.size();
    std::shared_ptr<LoadedGrammar> found;
    {
      absl::MutexLock lock(&mutex_);
      const auto entry = grammars_.find(grammar_id);
      if (entry != grammars_.end()) found = entry->second;
    }
    if (found == nullptr || !reader.ok()) return Internal("unknown grammar");
    TAOPD_ASSIGN_OR_RETURN(texts_[id], found->NewText(stop_ids, vocabulary_));
    return Fill(*texts_[id], ids);
  }

  absl::StatusOr<bool> Advance(uint64_t id, FrameReader& reader, uint64_t* position) {
    *position = reader.Read<uint64_t>();
    const std::vector<int32_t> ids = reader.ReadIds();
    const auto found = texts_.find(id);
    if (!reader.ok() || found == texts_.end()) return Internal("unknown text");
    return Fill(*found->second, ids);
  }

  absl::StatusOr<bool> Fill(MatchedText& text, const std::vector<int32_t>& ids) {
    for (const int32_t id : ids) TAOPD_RETURN_IF_ERROR(text.Accept(id));
    return text.Fill(&bits_);
  }

  const Vocabulary* const vocabulary_;
  Sender sender_;
  absl::Mutex mutex_;
  std::deque<std::string> compiles_ ABSL_GUARDED_BY(mutex_);
  GrammarQueue matches_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::shared_ptr<LoadedGrammar>> grammars_ ABSL_GUARDED_BY(mutex_);
  // Used only by the thread that computes masks. A text does not outlive its grammar: the server
  // closes it first.
  std::map<uint64_t, std::unique_ptr<MatchedText>> texts_;
  std::vector<uint64_t> bits_;
};

absl::StatusOr<Vocabulary> ReadVocabulary(const std::string& frame) {
  FrameReader reader(frame);
  if (reader.Read<GrammarOp>() != GrammarOp::kVocabulary) return DataLoss("no vocabulary");
  const auto limits = reader.Read<GrammarLimits>();
  std::vector<int32_t> eos_ids = reader.ReadIds();
  std::vector<std::string> token_bytes(reader.Read<uint32_t>());
  for (std::string& bytes : token_bytes) bytes = reader.ReadText();
  if (!reader.ok()) return DataLoss("the vocabulary is short");
  TAOPD_ASSIGN_OR_RETURN(auto library, GrammarLibrary::Load(token_bytes, eos_ids));
  JsonStringFilter json_filter(token_bytes);
  return Vocabulary{limits, std::move(eos_ids), std::move(token_bytes), std::move(library),
                    std::move(json_filter)};
}

// Reads more bytes. Returns false at the end of the socket.
bool Read(int fd, FrameBuffer* buffer) {
  static char bytes[kReadBytes];
  ssize_t n = 0;
  while ((n = ::recv(fd, bytes, sizeof(bytes), 0)) < 0 && errno == EINTR) {
  }
  if (n <= 0) return false;
  buffer->Append({bytes, static_cast<size_t>(n)});
  return true;
}

// Returns the first frame, or an empty one if the socket ends before.
std::string ReadFrame(int fd, FrameBuffer* buffer) {
  for (;;) {
    if (auto frame = buffer->Next(kMaxFrameBytes)) return *std::move(frame);
    if (!buffer->ok() || !Read(fd, buffer)) return "";
  }
}

// Starts the two working threads, and returns when each has its guard.
void StartThreads(GrammarServer* server) {
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, kStackBytes);
  ::pthread_setattr_default_np(&attributes);
  absl::BlockingCounter without_guard(2);
  const auto start = [&](void (GrammarServer::*work)(JobGuard&)) {
    std::thread([&without_guard, server, work] {
      JobGuard guard;
      without_guard.DecrementCount();
      (server->*work)(guard);
    }).detach();
  };
  start(&GrammarServer::CompileForever);
  start(&GrammarServer::MatchForever);
  without_guard.Wait();
}

// Serves until the server closes the socket. Returns the exit code.
int RunGrammarServer(int fd) {
  DropPrivileges(kGrammarCrashReportFd);
  ::mallopt(M_ARENA_MAX, 1);  // address space is limited
  FrameBuffer buffer;
  const auto vocabulary = ReadVocabulary(ReadFrame(fd, &buffer));
  const auto server = std::make_unique<GrammarServer>(fd, vocabulary.ok() ? &*vocabulary : nullptr);
  std::string sandbox;
  if (vocabulary.ok()) {
    CatchCrashes();  // after the library has installed its own handlers
    StartThreads(server.get());
    sandbox = EnterSandbox(vocabulary->limits.memory_bytes);
  }
  FrameWriter ready(GrammarOp::kReady);
  ready.Add(static_cast<int32_t>(vocabulary.status().code()))
      .AddRest(vocabulary.ok() ? sandbox : std::string(vocabulary.status().message()));
  server->sender().Send(ready);
  if (!vocabulary.ok()) return kExitInternal;
  do {
    while (auto frame = buffer.Next(kMaxFrameBytes)) {
      if (!server->Take(*std::move(frame))) ::_exit(kExitInternal);
    }
  } while (buffer.ok() && Read(fd, &buffer));
  ::_exit(kExitOk);  // without waiting for the other threads
}

}  // namespace
}  // namespace taopd

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--version") == 0) {
    std::cout << "taopd-grammar " << TAOPD_VERSION << "\n";
    return taopd::kExitOk;
  }
  if (argc != 2 || std::strcmp(argv[1], taopd::kGrammarServeFlag) != 0) {
    std::cerr << "taopd-grammar is started by taopd-teacher\n";
    return taopd::kExitUsage;
  }
  return taopd::RunGrammarServer(taopd::kGrammarSocketFd);
}
