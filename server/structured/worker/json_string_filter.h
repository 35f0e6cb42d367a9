// Forbids bytes below 0x20 inside strings, which JSON does not allow. (xgrammar allows them where a
// schema limits a string's length.)
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace taopd {

// Tells whether a position of a JSON text is inside a string.
class JsonStringState {
 public:
  enum Place { kOutside, kInside, kBehindBackslash };
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
  static JsonStringState At(Place place) {
    JsonStringState state;
    state.place_ = place;
    return state;
  }

 private:
  Place place_ = kOutside;
};

// Immutable.
class JsonStringFilter {
 public:
  explicit JsonStringFilter(const std::vector<std::string>& token_bytes) {
    for (int place = 0; place < 3; ++place) {
      std::vector<uint64_t>& words = allowed_[place];
      words.assign((token_bytes.size() + 63) / 64, ~uint64_t{0});
      for (size_t v = 0; v < token_bytes.size(); ++v) {
        auto state = JsonStringState::At(static_cast<JsonStringState::Place>(place));
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

}  // namespace taopd
