#include "server/structured/grammar_compiler.h"

#include <absl/synchronization/notification.h>
#include <absl/time/clock.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include "common/base/sharing/fair_share.h"

namespace taopd {
namespace {

constexpr absl::Duration kClientCheckInterval = absl::Milliseconds(100);
constexpr double kMaxClientShare = 0.5;  // of the grammars in use, while nobody else uses any

std::string KeyOf(const GrammarSpec& spec) {
  return Concat(static_cast<int>(spec.kind), spec.any_whitespace, spec.text);
}

// Returns an error if nobody waits for the grammar any more.
absl::Status CheckAwaited(const std::function<bool()>& is_gone, absl::Time deadline) {
  if (is_gone && is_gone()) return absl::CancelledError("the client has gone");
  if (absl::Now() <= deadline) return absl::OkStatus();
  return absl::DeadlineExceededError("the deadline passed before the grammar was compiled");
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
    : has_eos_(!eos_ids.empty()),
      options_(std::move(options)),
      host_(std::move(token_bytes), std::move(eos_ids), options_.host,
            [this](const GrammarSpec& spec, const std::string& how) {
              strikes_.Add(KeyOf(spec), how, absl::Now());
            }) {}

GrammarCompiler::~GrammarCompiler() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  host_.Stop();
  std::vector<Job> left;
  {
    absl::MutexLock lock(&mutex_);
    left = jobs_.TakeWaiting();
  }
  for (Job& job : left) job.done(absl::CancelledError("the server is shutting down"));
}

void GrammarCompiler::Submit(Request request, Done done) {
  absl::Status refused = CheckGrammarSpec(request.spec, request.field);
  if (refused.ok() && request.spec.kind == GrammarSpec::Kind::kStructuralTag) {
    request.spec.text = CurrentStructuralTag(request.spec.text);
    refused = CheckGrammarSpec(request.spec, request.field);
  }
  if (refused.ok() && !has_eos_) {
    refused =
        FailedPrecondition(request.field, ": the model has no end-of-sequence id (eos_token_id)");
  }
  if (refused.ok()) {
    absl::MutexLock lock(&mutex_);
    const size_t num_client_jobs = jobs_.SizeOf(request.client);
    if (stopping_) {
      refused = absl::CancelledError("the server is shutting down");
    } else if (jobs_.size() >= options_.max_waiting ||
               num_client_jobs >= options_.max_client_waiting) {
      refused =
          ResourceExhausted(request.field, ": ", jobs_.size(), " grammars wait to be compiled, ",
                            num_client_jobs, " of this client; the limits are ",
                            options_.max_waiting, " and ", options_.max_client_waiting);
    } else {
      const std::string client = request.client;
      jobs_.Push(client, {std::move(request), std::move(done)});
    }
  }
  if (!refused.ok()) return done(refused);
  host_.Post([this](GrammarHost&) { StartJob(); });
}

absl::StatusOr<std::shared_ptr<Grammar>> GrammarCompiler::Compile(Request request) {
  // The state that this call shares with the job, which may end after the call.
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
    const absl::Status awaited = CheckAwaited(is_gone, deadline);
    if (awaited.ok()) continue;
    shared->abandoned = true;
    return awaited;
  }
  return std::move(shared->result);
}

void GrammarCompiler::StartJob() {
  std::optional<Job> job;
  {
    absl::MutexLock lock(&mutex_);
    if (!stopping_) job = jobs_.Next();
  }
  if (job) Begin(*std::move(job));
}

void GrammarCompiler::Begin(Job job) {
  const Request& request = job.request;
  const auto end = [&](absl::StatusOr<std::shared_ptr<Grammar>> result) {
    Finish(job, std::move(result));
  };
  if (absl::Status awaited = CheckAwaited(request.is_gone, request.deadline); !awaited.ok())
    return end(awaited);
  const std::string key = KeyOf(request.spec);
  if (absl::Status refused = strikes_.Check(key, absl::Now()); !refused.ok()) return end(refused);
  const auto found =
      std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.key == key; });
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
    if (found->grammar.use_count() == 1) found->client = request.client;
    return end(found->grammar);
  }
  if (absl::Status refused = CheckShare(request.client, 0); !refused.ok()) return end(refused);
  if (kept_.size() >= options_.max_grammars && !DropOne())
    return end(ResourceExhausted(kept_.size(), " grammars are in use, which is the limit"));
  const std::shared_ptr<Grammar> grammar = host_.NewGrammar(request.spec);
  host_.Compile(grammar, [this, grammar, key, shared = std::make_shared<Job>(std::move(job))](
                             const absl::StatusOr<int64_t>& num_bytes) {
    absl::Status status = num_bytes.status();
    if (status.ok()) status = Keep({key, shared->request.client, grammar, *num_bytes});
    if (status.ok()) {
      Finish(*shared, grammar);
    } else {
      Finish(*shared, status);
    }
  });
}

void GrammarCompiler::Finish(Job& job, absl::StatusOr<std::shared_ptr<Grammar>> grammar) {
  if (!grammar.ok()) grammar = Annotate(grammar.status(), job.request.field);
  bool others_wait = false;
  {
    absl::MutexLock lock(&mutex_);
    jobs_.Done(job.request.client);
    others_wait = jobs_.size() > 0;
  }
  // The next one gets a task of its own, after the texts that have ended meanwhile and after this
  // call has released its grammar: neither may count as in use.
  if (others_wait) host_.Post([this](GrammarHost&) { StartJob(); });
  job.done(std::move(grammar));
}

absl::Status GrammarCompiler::CheckShare(const std::string& client, int64_t num_bytes) const {
  int64_t num_held = 0, held_bytes = 0;
  int64_t num_free = options_.max_grammars, free_bytes = options_.max_compiled_bytes;
  for (const Kept& kept : kept_) {
    if (kept.grammar.use_count() == 1) continue;
    --num_free;
    free_bytes -= kept.num_bytes;
    if (kept.client != client) continue;
    ++num_held;
    held_bytes += kept.num_bytes;
  }
  if (num_held == 0 || (FitsShare(num_held + 1, num_free - 1, kMaxClientShare) &&
                        FitsShare(held_bytes + num_bytes, free_bytes - num_bytes, kMaxClientShare)))
    return absl::OkStatus();
  return ResourceExhausted("the client uses ", num_held, " grammars of ", held_bytes,
                           " bytes, which is its share of ", options_.max_grammars, " and ",
                           options_.max_compiled_bytes);
}

absl::Status GrammarCompiler::Keep(Kept kept) {
  if (absl::Status refused = CheckShare(kept.client, kept.num_bytes); !refused.ok()) {
    host_.Forget(*kept.grammar);
    return refused;
  }
  while (kept_bytes_ + kept.num_bytes > options_.max_compiled_bytes) {
    if (DropOne()) continue;
    host_.Forget(*kept.grammar);
    return ResourceExhausted("the grammars in use take ", kept_bytes_, " bytes, and this one ",
                             kept.num_bytes, "; the limit is ", options_.max_compiled_bytes);
  }
  kept_bytes_ += kept.num_bytes;
  kept_.push_front(std::move(kept));
  return absl::OkStatus();
}

bool GrammarCompiler::DropOne() {
  // Only this thread hands out grammars, so one that nobody holds stays so.
  const auto unused = std::find_if(kept_.rbegin(), kept_.rend(),
                                   [](const Kept& kept) { return kept.grammar.use_count() == 1; });
  if (unused == kept_.rend()) return false;
  host_.Forget(*unused->grammar);
  kept_bytes_ -= unused->num_bytes;
  kept_.erase(std::prev(unused.base()));
  return true;
}

}  // namespace taopd
