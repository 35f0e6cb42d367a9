#include "server/structured/grammar_compiler.h"

#include <absl/synchronization/notification.h>
#include <absl/time/clock.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/base/log.h"
#include "server/structured/wire.h"

namespace taopd {
namespace {

constexpr absl::Duration kMaxStartWait = absl::Seconds(60);
constexpr absl::Duration kMaxForkWait = absl::Seconds(20);
constexpr absl::Duration kClientCheckInterval = absl::Milliseconds(100);
// Specs that are known to be refused, so that nobody compiles them twice.
constexpr size_t kMaxRefused = 1024;

std::string DefaultProgram() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "taopd-grammar" : (self.parent_path() / "taopd-grammar").string();
}

std::string KeyOf(const GrammarSpec& spec) {
  return Concat(static_cast<int>(spec.kind), spec.any_whitespace, spec.text);
}

absl::StatusOr<std::pair<int, int>> SocketPair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return Unavailable("socketpair: ", std::strerror(errno));
  return std::pair(ends[0], ends[1]);
}

absl::StatusOr<pid_t> Spawn(const std::string& program, int fd) {
  std::string path = program, flag = kGrammarServeFlag;
  char* const arguments[] = {path.data(), flag.data(), nullptr};
  // Keys may be in the environment; the program needs none of it but where its libraries are.
  std::vector<std::string> environment;
  if (const char* libraries = std::getenv("LD_LIBRARY_PATH"))
    environment.push_back(Concat("LD_LIBRARY_PATH=", libraries));
  std::vector<char*> variables;
  for (std::string& variable : environment) variables.push_back(variable.data());
  variables.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, fd, kGrammarServeFd);
  // Signals that this program blocks in its threads.
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = 0;
  const int error =
      ::posix_spawn(&pid, path.c_str(), &actions, &attributes, arguments, variables.data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Unavailable("cannot start ", program, ": ", std::strerror(error));
  return pid;
}

// The grammar, which is in use as long as the pointer is held.
std::shared_ptr<Grammar> InUse(std::shared_ptr<Grammar> grammar,
                               std::unique_ptr<GrammarUses::Use> use) {
  struct Held {
    std::unique_ptr<GrammarUses::Use> use;
    std::shared_ptr<Grammar> grammar;  // goes first
  };
  const auto held = std::make_shared<Held>(Held{std::move(use), std::move(grammar)});
  return std::shared_ptr<Grammar>(held, held->grammar.get());
}

}  // namespace

std::vector<std::string> TokenBytesOf(const Tokenizer& tokenizer, int64_t vocab_size) {
  std::vector<std::string> token_bytes(static_cast<size_t>(vocab_size));
  const int64_t num_known = std::min(vocab_size, tokenizer.vocab_size());
  for (int64_t v = 0; v < num_known; ++v) {
    const auto id = static_cast<int32_t>(v);
    const bool is_special = tokenizer.Decode({id}, /*skip_special_tokens=*/true).empty();
    if (!is_special) token_bytes[v] = tokenizer.TokenBytes(id);
  }
  return token_bytes;
}

GrammarCompiler::GrammarCompiler(std::vector<std::string> token_bytes, std::vector<int32_t> eos_ids,
                                 GrammarCompilerOptions options)
    : token_bytes_(std::move(token_bytes)),
      eos_ids_(std::move(eos_ids)),
      options_(std::move(options)),
      uses_(GrammarUses::New(options_.max_grammars, options_.max_client_share)) {
  for (int i = 0; i < options_.num_threads; ++i) threads_.emplace_back([this] { Run(); });
}

GrammarCompiler::~GrammarCompiler() {
  std::vector<Job> left;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    while (jobs_.size() > 0) left.push_back(jobs_.Take());
  }
  for (Job& job : left) job.done(absl::CancelledError("the server ends"));
  for (std::thread& thread : threads_) thread.join();
  absl::MutexLock lock(&program_mutex_);
  EndProgram();
}

void GrammarCompiler::Submit(Request request, Done done) {
  absl::Status refused = CheckGrammarSpec(request.spec, request.field);
  if (refused.ok() && eos_ids_.empty()) {
    refused =
        FailedPrecondition(request.field, ": the model names no end-of-sequence id (eos_token_id)");
  }
  if (refused.ok()) {
    absl::MutexLock lock(&mutex_);
    const size_t num_of_client = jobs_.SizeOf(request.client);
    if (stopping_) {
      refused = absl::CancelledError("the server ends");
    } else if (jobs_.size() >= options_.max_waiting ||
               num_of_client >= options_.max_client_waiting) {
      refused =
          ResourceExhausted(request.field, ": ", jobs_.size(), " grammars wait to be compiled, ",
                            num_of_client, " of this client; the limits are ", options_.max_waiting,
                            " and ", options_.max_client_waiting);
    } else {
      const std::string client = request.client;
      jobs_.Push(client, {std::move(request), std::move(done)});
      return;
    }
  }
  done(refused);
}

absl::StatusOr<std::shared_ptr<Grammar>> GrammarCompiler::Compile(Request request) {
  // Of this call and of the job, which may end after the call.
  struct Shared {
    absl::Notification done;
    absl::StatusOr<std::shared_ptr<Grammar>> result = absl::UnknownError("");
    std::atomic<bool> abandoned{false};
  };
  const auto shared = std::make_shared<Shared>();
  const std::function<bool()> is_gone = std::move(request.is_gone);
  const absl::Time deadline = request.deadline;
  request.is_gone = [shared] { return shared->abandoned.load(); };
  Submit(std::move(request), [shared](absl::StatusOr<std::shared_ptr<Grammar>> result) {
    shared->result = std::move(result);
    shared->done.Notify();
  });
  while (!shared->done.WaitForNotificationWithTimeout(kClientCheckInterval)) {
    const bool is_late = absl::Now() > deadline;
    if (!is_late && !(is_gone && is_gone())) continue;
    shared->abandoned = true;
    if (is_late)
      return absl::DeadlineExceededError("the deadline passed before the grammar was compiled");
    return absl::CancelledError("the client has gone");
  }
  return std::move(shared->result);
}

bool GrammarCompiler::HasJob() const { return stopping_ || jobs_.size() > 0; }

void GrammarCompiler::Run() {
  for (;;) {
    Job job;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &GrammarCompiler::HasJob));
      if (jobs_.size() == 0) return;
      job = jobs_.Take();
    }
    auto grammar = Find(job.request);
    if (!grammar.ok()) grammar = Annotate(grammar.status(), job.request.field);
    {
      absl::MutexLock lock(&mutex_);
      jobs_.Done(job.request.client);
    }
    job.done(std::move(grammar));
  }
}

absl::StatusOr<std::shared_ptr<Grammar>> GrammarCompiler::Find(const Request& request) {
  if (request.is_gone && request.is_gone()) return absl::CancelledError("the client has gone");
  if (absl::Now() > request.deadline)
    return absl::DeadlineExceededError("the deadline passed before the grammar was compiled");
  const std::string key = KeyOf(request.spec);
  std::unique_ptr<GrammarUses::Use> use;
  std::vector<Kept> dropped;  // ends processes, which takes a while, without the lock
  {
    absl::MutexLock lock(&mutex_);
    if (const Kept* kept = LookUp(key)) {
      if (!kept->grammar.ok()) return kept->grammar.status();
      TAOPD_ASSIGN_OR_RETURN(use, uses_->Begin(request.client, kept->grammar->get()));
      return InUse(*kept->grammar, std::move(use));
    }
    // A place, which this call's variable stands for until there is a grammar.
    TAOPD_ASSIGN_OR_RETURN(use, uses_->Begin(request.client, &use));
    dropped = MakeRoom();
  }
  dropped.clear();
  TAOPD_ASSIGN_OR_RETURN(const int fd, NewProcess());
  auto grammar = Grammar::Compile(fd, request.spec, eos_ids_);
  if (grammar.ok()) use->Move(grammar->get());
  if (grammar.ok() || absl::IsInvalidArgument(grammar.status())) Keep(key, request.client, grammar);
  if (!grammar.ok()) return grammar.status();
  return InUse(*std::move(grammar), std::move(use));
}

const GrammarCompiler::Kept* GrammarCompiler::LookUp(const std::string& key) {
  const auto found = kept_by_key_.find(key);
  if (found == kept_by_key_.end()) return nullptr;
  const auto entry = found->second;
  // What has failed in earnest fails again.
  if (entry->grammar.ok() && !(*entry->grammar)->is_alive())
    entry->grammar = InvalidArgument("its process has ended while a text followed it");
  kept_.splice(kept_.begin(), kept_, entry);
  return &*entry;
}

void GrammarCompiler::Keep(const std::string& key, const std::string& client,
                           absl::StatusOr<std::shared_ptr<Grammar>> grammar) {
  std::vector<Kept> dropped;  // as in Find
  absl::MutexLock lock(&mutex_);
  if (kept_by_key_.contains(key)) return;  // another thread has compiled it, too
  kept_.push_front({key, client, std::move(grammar)});
  kept_by_key_[key] = kept_.begin();
  const auto is_grammar = [](const Kept& kept) { return kept.grammar.ok(); };
  const auto num_grammars =
      static_cast<size_t>(std::count_if(kept_.begin(), kept_.end(), is_grammar));
  const size_t num_refused = kept_.size() - num_grammars;
  if (num_grammars > options_.max_kept) dropped.push_back(Drop(LeastNeeded(/*only_unused=*/false)));
  if (num_refused > kMaxRefused) {
    const auto oldest = std::find_if_not(kept_.rbegin(), kept_.rend(), is_grammar);
    dropped.push_back(Drop(std::prev(oldest.base())));
  }
}

std::list<GrammarCompiler::Kept>::iterator GrammarCompiler::LeastNeeded(bool only_unused) {
  std::unordered_map<std::string, size_t> num_of_client;
  for (const Kept& kept : kept_) num_of_client[kept.client] += kept.grammar.ok();
  auto least = kept_.end();
  for (auto entry = kept_.begin(); entry != kept_.end(); ++entry) {
    if (!entry->grammar.ok() || (only_unused && entry->grammar->use_count() > 1)) continue;
    // Among equals the last one, which was used least recently.
    if (least == kept_.end() || num_of_client[entry->client] >= num_of_client[least->client])
      least = entry;
  }
  return least;
}

GrammarCompiler::Kept GrammarCompiler::Drop(std::list<Kept>::iterator entry) {
  Kept dropped = std::move(*entry);
  kept_by_key_.erase(dropped.key);
  kept_.erase(entry);
  return dropped;
}

std::vector<GrammarCompiler::Kept> GrammarCompiler::MakeRoom() {
  std::vector<Kept> dropped;
  auto num_unused =
      static_cast<size_t>(std::count_if(kept_.begin(), kept_.end(), [](const Kept& kept) {
        return kept.grammar.ok() && kept.grammar->use_count() == 1;
      }));
  while (num_unused > 0 && uses_->num_used() + num_unused > options_.max_grammars) {
    const auto entry = LeastNeeded(/*only_unused=*/true);
    if (entry == kept_.end()) break;
    dropped.push_back(Drop(entry));
    --num_unused;
  }
  return dropped;
}

absl::StatusOr<int> GrammarCompiler::NewProcess() {
  absl::MutexLock lock(&program_mutex_);
  absl::Status status;
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (program_fd_ < 0) TAOPD_RETURN_IF_ERROR(StartProgram());
    TAOPD_ASSIGN_OR_RETURN(const auto ends, SocketPair());
    status = SendDescriptor(program_fd_, ends.second);
    ::close(ends.second);
    if (status.ok()) {
      const auto hello = ReceiveFrame(ends.first, absl::Now() + kMaxForkWait);
      if (hello.ok() && *hello) return ends.first;
      status = hello.ok() ? Unavailable("taopd-grammar does not start a process") : hello.status();
    }
    ::close(ends.first);
    EndProgram();  // it has ended, or cannot fork; a new one may do better
  }
  return status;
}

absl::Status GrammarCompiler::StartProgram() {
  const std::string program = options_.program.empty() ? DefaultProgram() : options_.program;
  TAOPD_ASSIGN_OR_RETURN(const auto ends, SocketPair());
  const auto pid = Spawn(program, ends.second);
  ::close(ends.second);  // so that the end of the program is the end of the socket
  if (!pid.ok()) {
    ::close(ends.first);
    return pid.status();
  }
  program_fd_ = ends.first;
  program_pid_ = *pid;
  FrameWriter vocabulary(GrammarOp::kVocabulary);
  vocabulary.Add(options_.limits).AddIds(eos_ids_).Add(static_cast<uint32_t>(token_bytes_.size()));
  for (const std::string& bytes : token_bytes_) vocabulary.AddText(bytes);
  absl::Status status = SendFrame(program_fd_, vocabulary.bytes());
  if (status.ok()) {
    const auto answer = ReceiveFrame(program_fd_, absl::Now() + kMaxStartWait);
    status = answer.status();
    if (status.ok() && !*answer) status = Unavailable(program, " has ended");
    if (status.ok()) {
      FrameReader reader(**answer);
      reader.Take<GrammarOp>();
      if (reader.Take<int32_t>() != 0) status = Unavailable(program, ": ", reader.TakeRest());
    }
  }
  if (!status.ok()) {
    EndProgram();
    return Unavailable("structured output is not available: ", status.message());
  }
  LogInfo("taopd-grammar started", {{"pid", static_cast<int64_t>(*pid)}});
  return absl::OkStatus();
}

void GrammarCompiler::EndProgram() {
  if (program_fd_ < 0) return;
  ::close(program_fd_);
  program_fd_ = -1;
  // It ends at once, wherever it is: its grammars have processes of their own.
  ::kill(program_pid_, SIGKILL);
  int status = 0;
  while (::waitpid(program_pid_, &status, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace taopd
