// The library xgrammar, through the C interface of tvm-ffi that its Python wheel registers. Its
// exceptions become statuses.
//
// One thread may compile while another one uses compiled grammars. An object may be used by one
// thread at a time.
#pragma once

#include <tvm/ffi/any.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "server/structured/grammar_spec.h"

namespace taopd {

// The methods of the library's matcher, looked up once, and the size of the vocabulary.
struct MatcherMethods {
  tvm::ffi::Function make, accept, fill, has_ended;
  int64_t vocab_size;
};

// The state of one text under a grammar.
class GrammarMatcher {
 public:
  GrammarMatcher(const MatcherMethods* methods, tvm::ffi::Any matcher)
      : methods_(methods), matcher_(std::move(matcher)) {}

  // Takes the next id. Returns INVALID_ARGUMENT if the grammar does not allow it.
  absl::Status Accept(int32_t id);
  // Returns whether a stop id has been accepted, which ends the text.
  bool HasEnded() const { return has_ended_; }
  // Sets bit v % 64 of bits[v / 64] for the ids that may follow and clears it for the others.
  // Returns false, and leaves the bits unchanged, if all ids may follow. REQUIRES: !HasEnded().
  absl::StatusOr<bool> Fill(std::span<uint64_t> bits);

 private:
  const MatcherMethods* methods_;
  tvm::ffi::Any matcher_;
  bool has_ended_ = false;
};

class CompiledGrammar {
 public:
  CompiledGrammar(const MatcherMethods* methods, tvm::ffi::Any compiled);

  // The grammar and the library must outlive the matcher. Stop ids are allowed where the text is
  // complete.
  absl::StatusOr<GrammarMatcher> NewMatcher(const std::vector<int32_t>& stop_ids) const;
  // Returns its approximate size in memory.
  int64_t num_bytes() const { return num_bytes_; }

 private:
  const MatcherMethods* methods_;
  tvm::ffi::Any compiled_;
  int64_t num_bytes_;
};

class GrammarLibrary {
 public:
  // token_bytes[v] are the bytes of id v; those of special ids are empty, and no grammar allows
  // them.
  static absl::StatusOr<std::unique_ptr<GrammarLibrary>> Load(
      const std::vector<std::string>& token_bytes, const std::vector<int32_t>& eos_ids);

  // Returns INVALID_ARGUMENT if the spec is malformed or unsupported, or needs too much memory.
  absl::StatusOr<CompiledGrammar> Compile(const GrammarSpec& spec);

 private:
  GrammarLibrary(const std::vector<std::string>& token_bytes, const std::vector<int32_t>& eos_ids);
  tvm::ffi::Any CompileOrThrow(const GrammarSpec& spec);

  const MatcherMethods methods_;
  tvm::ffi::Any compiler_;
};

}  // namespace taopd
