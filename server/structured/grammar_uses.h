// Which clients use which grammars, so that no client takes all the processes. A grammar that several
// clients use counts once in all, and once for each of them. Thread-safe.
#pragma once

#include <absl/synchronization/mutex.h>

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "common/base/status.h"

namespace taopd {

class GrammarUses : public std::enable_shared_from_this<GrammarUses> {
 public:
  // One use, until the object goes. It may outlive whoever else holds the GrammarUses.
  class Use {
   public:
    ~Use() { uses_->End(client_, grammar_); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    // From now on it is a use of this grammar instead.
    void Move(const void* grammar) {
      uses_->Move(client_, grammar_, grammar);
      grammar_ = grammar;
    }

   private:
    friend class GrammarUses;
    Use(std::shared_ptr<GrammarUses> uses, std::string client, const void* grammar)
        : uses_(std::move(uses)), client_(std::move(client)), grammar_(grammar) {}
    const std::shared_ptr<GrammarUses> uses_;
    const std::string client_;
    const void* grammar_;
  };

  // `max_client_share`: see FitsShare (common/base/fair_share.h). A client that uses no grammar may
  // use one wherever there is room. The empty name has no share: it may use all.
  static std::shared_ptr<GrammarUses> New(size_t max_grammars, double max_client_share) {
    return std::shared_ptr<GrammarUses>(new GrammarUses(max_grammars, max_client_share));
  }

  // `grammar` is whatever tells grammars apart while they are used. Returns RESOURCE_EXHAUSTED if
  // too many are used, or too many by this client.
  absl::StatusOr<std::unique_ptr<Use>> Begin(const std::string& client, const void* grammar);

  size_t num_used() const;

 private:
  using Counts = std::unordered_map<const void*, size_t>;  // uses of each grammar

  GrammarUses(size_t max_grammars, double max_client_share)
      : max_grammars_(max_grammars), max_client_share_(max_client_share) {}

  absl::Status Check(const std::string& client, const void* grammar) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Move(const std::string& client, const void* from, const void* to);
  void End(const std::string& client, const void* grammar);
  void Add(const std::string& client, const void* grammar) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(const std::string& client, const void* grammar) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t max_grammars_;
  const double max_client_share_;
  mutable absl::Mutex mutex_;
  Counts all_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, Counts> by_client_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace taopd
