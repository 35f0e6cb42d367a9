// A text that must match a compiled grammar: the ids so far, the mask of the next id, and the time
// that its masks have taken. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "server/structured/limits.h"
#include "server/structured/worker/xgrammar.h"

namespace taopd {

// Tells whether a position of a JSON text is inside a string.
class JsonStringState {
 public:
  enum Place { kOutside, kInside, kBehindBackslash };

  explicit JsonStringState(Place place = kOutside) : place_(place) {}
  // Returns false if the byte is not allowed here.
  bool Push(char c) {
    const bool is_allowed = place_ == kOutside || static_cast<unsigned char>(c) >= 0x20;
    if (place_ == kBehindBackslash) {
      place_ = kInside;
    } else if (c == '"') {
      place_ = place_ == kOutside ? kInside : kOutside;
    } else if (c == '\\' && place_ == kInside) {
      place_ = kBehindBackslash;
    }
    return is_allowed;
  }
  // Adds all bytes of a token. Returns whether every one is allowed.
  bool Push(std::string_view bytes) {
    bool is_allowed = true;
    for (const char c : bytes) is_allowed = Push(c) && is_allowed;
    return is_allowed;
  }
  Place place() const { return place_; }

 private:
  Place place_;
};

// Forbids bytes below 0x20 inside strings, which JSON does not allow. (xgrammar allows them where a
// schema limits a string's length.) Immutable.
class JsonStringFilter {
 public:
  explicit JsonStringFilter(const std::vector<std::string>& token_bytes) {
    for (int place = 0; place < 3; ++place) {
      std::vector<uint64_t>& words = allowed_[place];
      words.assign((token_bytes.size() + 63) / 64, ~uint64_t{0});
      for (size_t v = 0; v < token_bytes.size(); ++v) {
        JsonStringState state(static_cast<JsonStringState::Place>(place));
        if (!state.Push(std::string_view(token_bytes[v])))
          words[v / 64] &= ~(uint64_t{1} << (v % 64));
      }
    }
  }

  // Clears the bits of the ids that are not allowed at this place.
  void Apply(JsonStringState::Place place, std::span<uint64_t> bits) const {
    for (size_t w = 0; w < bits.size(); ++w) bits[w] &= allowed_[place][w];
  }

 private:
  std::array<std::vector<uint64_t>, 3> allowed_;
};

// Shared by all grammars and texts. Immutable, except that one thread compiles with the library.
struct Vocabulary {
  GrammarLimits limits;
  std::vector<int32_t> eos_ids;
  std::vector<std::string> token_bytes;
  std::unique_ptr<GrammarLibrary> library;
  JsonStringFilter json_filter;

  int64_t size() const { return static_cast<int64_t>(token_bytes.size()); }
};

class MatchedText {
 public:
  // If `is_json`, the masks also forbid the bytes that JSON does not allow in strings.
  MatchedText(GrammarMatcher matcher, bool is_json, const Vocabulary* vocabulary)
      : matcher_(std::move(matcher)), is_json_(is_json), vocabulary_(vocabulary) {}

  // After the end of the text, every id is accepted.
  absl::Status Accept(int32_t id) {
    ++position_;
    if (matcher_.HasEnded()) return absl::OkStatus();
    TAOPD_RETURN_IF_ERROR(matcher_.Accept(id));
    if (is_json_ && id >= 0 && id < vocabulary_->size())
      json_.Push(std::string_view(vocabulary_->token_bytes[id]));
    return absl::OkStatus();
  }
  // See GrammarMatcher::Fill.
  absl::StatusOr<bool> Fill(std::vector<uint64_t>* bits) {
    if (matcher_.HasEnded()) return false;
    bits->assign((static_cast<size_t>(vocabulary_->size()) + 63) / 64, ~uint64_t{0});
    TAOPD_ASSIGN_OR_RETURN(const bool restricts, matcher_.Fill(*bits));
    if (is_json_) vocabulary_->json_filter.Apply(json_.place(), *bits);
    return restricts || is_json_;
  }
  bool HasEnded() const { return matcher_.HasEnded(); }

  // Returns INVALID_ARGUMENT if the text's masks have taken more than their limits.
  absl::Status Charge(double cpu_ms) {
    cpu_ms_ += cpu_ms;
    const GrammarLimits& limits = vocabulary_->limits;
    const double limit_ms =
        static_cast<double>(limits.text_cpu_ms) +
        static_cast<double>(limits.token_cpu_ms) * static_cast<double>(position_);
    if (cpu_ms_ <= limit_ms) return absl::OkStatus();
    return InvalidArgument("it takes too long to match: the masks of ", position_,
                           " tokens took more than ", static_cast<int64_t>(limit_ms),
                           " ms of a processor");
  }

 private:
  GrammarMatcher matcher_;
  const bool is_json_;
  const Vocabulary* const vocabulary_;
  JsonStringState json_;
  uint64_t position_ = 0;  // ids accepted
  double cpu_ms_ = 0.0;
};

}  // namespace taopd
