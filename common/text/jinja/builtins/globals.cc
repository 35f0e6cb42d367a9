// The functions that every template can call.
#include <absl/strings/string_view.h>
#include <absl/time/time.h>

#include "common/text/jinja/error.h"
#include "common/text/jinja/limits.h"
#include "common/text/jinja/runtime/runtime.h"
#include "common/text/jinja/values/format.h"

namespace taopd::jinja {
namespace {

Value Range(Runtime& runtime, const Arguments& arguments) {
  const auto bound = arguments.Bind("range", {"start", "stop", "step"}, 1);
  auto sequence = std::make_shared<Sequence>();
  sequence->type = SequenceType::kRange;
  int64_t* range = sequence->range;
  if (bound[1] == nullptr) {
    range[1] = ToInteger(*bound[0], "range: stop");
  } else {
    range[0] = ToInteger(*bound[0], "range: start");
    range[1] = ToInteger(*bound[1], "range: stop");
  }
  if (bound[2] != nullptr) range[2] = ToInteger(*bound[2], "range: step");
  if (range[2] == 0) Fail("range() arg 3 must not be zero");
  for (int64_t i = range[0]; range[2] > 0 ? i < range[1] : i > range[1];) {
    if (static_cast<int64_t>(sequence->items.size()) == kMaxRange) {
      FailLimit("range of more elements than the limit of ", kMaxRange);
    }
    sequence->items.emplace_back(Value(i));
    if (__builtin_add_overflow(i, range[2], &i)) break;
  }
  runtime.Charge(static_cast<int64_t>(sequence->items.size() * sizeof(Value)));
  return Value(std::shared_ptr<const Sequence>(std::move(sequence)));
}

// Returns the pairs of an optional mapping or list of pairs, followed by the keywords.
std::vector<std::pair<Value, Value>> ItemsOfDictCall(Runtime& runtime, const Arguments& arguments) {
  std::vector<std::pair<Value, Value>> items;
  if (arguments.positional.size() > 1) Fail("expected at most 1 argument");
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (const Dict* dict = source.dict()) {
      items = dict->items;
    } else {
      for (const Value& pair : runtime.Iterate(source)) {
        const std::vector<Value> parts = runtime.Iterate(pair);
        if (parts.size() != 2) Fail("dictionary update sequence element has not length 2");
        items.emplace_back(parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.keywords) {
    items.emplace_back(runtime.MakeText(name), value);
  }
  return items;
}

Value MakeDictGlobal(Runtime& runtime, const Arguments& arguments) {
  return runtime.MakeDict(ItemsOfDictCall(runtime, arguments));
}

Value MakeNamespaceGlobal(Runtime& runtime, const Arguments& arguments) {
  const Value name_space = runtime.MakeNamespace();
  // Goes through a dict, so that the last of several equal names counts.
  const Value dict = runtime.MakeDict(ItemsOfDictCall(runtime, arguments));
  for (const auto& [key, value] : dict.dict()->items) {
    name_space.name_space()->attributes.emplace_back(TextArgument(key, "namespace: name"), value);
  }
  return name_space;
}

Value RaiseException(Runtime& runtime, const Arguments& arguments) {
  const auto bound = arguments.Bind("raise_exception", {"message"}, 1);
  Fail(ToString(runtime, *bound[0]));
}

Value StrftimeNow(Runtime& runtime, const Arguments& arguments) {
  const auto bound = arguments.Bind("strftime_now", {"format"}, 1);
  const std::string& format = TextArgument(*bound[0], "strftime_now: format");
  constexpr size_t kMaxFormatBytes = 1024;
  if (format.size() > kMaxFormatBytes) {
    FailLimit("strftime_now: format of ", format.size(), " bytes exceeds ", kMaxFormatBytes);
  }
  return runtime.MakeText(
      absl::FormatTime(absl::string_view(format), runtime.now(), runtime.time_zone()));
}

Value Joiner(Runtime& runtime, const Arguments& arguments) {
  const auto bound = arguments.Bind("joiner", {"sep"});
  // A namespace is used for the same reason as for a method's object (access.cc).
  const Value holder = runtime.MakeNamespace();
  holder.name_space()->attributes.emplace_back(
      "sep", bound[0] == nullptr ? runtime.MakeText(", ") : *bound[0]);
  return runtime.MakeCallable(
      "Joiner", "joiner",
      [holder, is_used = std::make_shared<bool>(false)](Runtime& r, const Arguments&) {
        if (std::exchange(*is_used, true)) {
          return holder.name_space()->attributes[0].second;
        }
        return r.MakeText("");
      });
}

// The state of cycler(...).next(), .current and .reset() is kept in a namespace. The items are in
// another one, for the same reason as a method's object (access.cc).
Value Cycler(Runtime& runtime, const Arguments& arguments) {
  if (arguments.positional.empty()) Fail("at least one item has to be provided");
  const Value items = runtime.MakeNamespace();
  for (const Value& item : arguments.positional)
    items.name_space()->attributes.emplace_back("", item);
  const Value name_space = runtime.MakeNamespace();
  Namespace* cycler = name_space.name_space();
  const auto position = std::make_shared<size_t>(0);
  // The namespace outlives the calls of the rendering; a pointer to it makes no cycle of ownership.
  auto move_to = [cycler, items, position](size_t index) {
    *position = index % items.name_space()->attributes.size();
    cycler->attributes[0].second = items.name_space()->attributes[*position].second;
  };
  cycler->attributes.emplace_back("current", arguments.positional[0]);
  cycler->attributes.emplace_back(
      "next", runtime.MakeCallable("method", "next", [=](Runtime&, const Arguments&) {
        const Value now = items.name_space()->attributes[*position].second;
        move_to(*position + 1);
        return now;
      }));
  cycler->attributes.emplace_back(
      "reset", runtime.MakeCallable("method", "reset", [=](Runtime&, const Arguments&) {
        move_to(0);
        return Value(None{});
      }));
  return name_space;
}

}  // namespace

std::optional<Value> FindGlobal(Runtime& runtime, std::string_view name) {
  using Function = Value (*)(Runtime&, const Arguments&);
  static constexpr std::pair<std::string_view, Function> kGlobals[] = {
      {"range", Range},
      {"dict", MakeDictGlobal},
      {"namespace", MakeNamespaceGlobal},
      {"raise_exception", RaiseException},
      {"strftime_now", StrftimeNow},
      {"joiner", Joiner},
      {"cycler", Cycler},
  };
  const Function function = FindIn(kGlobals, name);
  if (function == nullptr) return std::nullopt;
  return runtime.MakeCallable("function", std::string(name), function);
}

}  // namespace taopd::jinja
