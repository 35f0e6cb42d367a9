// Filters on sequences and mappings. Filters that are generators in jinja2 return iterators here
// too, which are always true, have no length, and can be read once.
#include <algorithm>

#include "common/text/jinja/error.h"
#include "common/text/jinja/limits.h"
#include "common/text/jinja/runtime/runtime.h"
#include "common/text/jinja/values/format.h"
#include "common/text/jinja/values/python_text.h"

namespace taopd::jinja {
namespace {

// Returns the attribute of a value that `attribute=` names: "a.b.0", or an index. Undefined
// attributes become `fallback`, if it is not null.
Value Attribute(Runtime& runtime, Value value, const Value& attribute, const Value* fallback) {
  if (attribute.text() == nullptr) {
    value = GetItem(runtime, value, attribute);
    return value.is_undefined() && fallback != nullptr ? *fallback : value;
  }
  for (const std::string_view part : Split(attribute.text()->bytes, ".", -1, false)) {
    const std::optional<size_t> index = ParseIndex(part);
    const Value key =
        index ? Value(static_cast<int64_t>(*index)) : runtime.MakeText(std::string(part));
    value = GetItem(runtime, value, key);
    if (value.is_undefined() && fallback != nullptr) value = *fallback;
  }
  return value;
}

Value IgnoreCase(Runtime& runtime, const Value& value) {
  return value.text() != nullptr ? runtime.MakeText(ToLower(value.text()->bytes)) : value;
}

bool IsGiven(const Value* value) { return value != nullptr && !value->is_none(); }

// Returns the key by which `value` is compared: its attribute, in lower case unless case matters.
Value SortKey(Runtime& runtime, const Value& value, const Value* attribute,
              bool is_case_sensitive) {
  const Value key = IsGiven(attribute) ? Attribute(runtime, value, *attribute, nullptr) : value;
  return is_case_sensitive ? key : IgnoreCase(runtime, key);
}

bool KeyLess(Runtime& runtime, const Value& a, const Value& b) {
  return !IsTrue(Apply(runtime, Operator::kEqual, a, b)) &&
         IsTrue(Apply(runtime, Operator::kLess, a, b));
}

// A stable sort that computes the keys once. Its merge tolerates keys without a consistent order.
std::vector<Value> Sorted(Runtime& runtime, std::vector<std::pair<Value, Value>> keyed,
                          bool is_reverse) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return is_reverse ? KeyLess(runtime, b.first, a.first) : KeyLess(runtime, a.first, b.first);
  });
  std::vector<Value> sorted;
  for (auto& [key, value] : keyed) sorted.push_back(std::move(value));
  return sorted;
}

Value LengthFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  arguments.Bind("length", {});
  if (self.text() != nullptr) runtime.Scan(self.text()->bytes.size());
  return Value(Length(self));
}

Value ListFilter(Runtime& runtime, const Value& self, const Arguments& arguments) {
  arguments.Bind("list", {});
  return runtime.MakeSequence(runtime.Iterate(self));
}

Value First(Runtime& runtime, const Value& self, const Arguments& arguments) {
  arguments.Bind("first", {});
  if (self.IsSequence(SequenceType::kIterator)) {
    const Sequence& iterator = *self.sequence();
    if (iterator.position < iterator.items.size()) return iterator.items[iterator.position++];
  } else {
    std::vector<Value> items = runtime.Iterate(self);
    if (!items.empty()) return items.front();
  }
  return Value::OfUndefined("No first item, sequence was empty.");
}

Value Last(Runtime& runtime, const Value& self, const Arguments& arguments) {
  arguments.Bind("last", {});
  if (self.IsSequence(SequenceType::kIterator)) Fail("'generator' object is not reversible");
  std::vector<Value> items = runtime.Iterate(self);
  return items.empty() ? Value::OfUndefined("No last item, sequence was empty.") : items.back();
}

Value Reverse(Runtime& runtime, const Value& self, const Arguments& arguments) {
  arguments.Bind("reverse", {});
  std::vector<Value> items = runtime.Iterate(self);
  std::reverse(items.begin(), items.end());
  if (self.text() == nullptr)
    return runtime.MakeSequence(std::move(items), SequenceType::kIterator);
  std::string reversed;
  for (const Value& item : items) reversed += item.text()->bytes;
  return runtime.MakeText(std::move(reversed));
}

Value Join(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("join", {"d", "attribute"});
  const std::string separator = bound[0] == nullptr ? "" : ToString(runtime, *bound[0]);
  std::string joined;
  bool is_first = true;
  for (const Value& item : runtime.Iterate(self)) {
    if (!is_first) joined += separator;
    is_first = false;
    joined +=
        ToString(runtime, IsGiven(bound[1]) ? Attribute(runtime, item, *bound[1], nullptr) : item);
    runtime.Charge(static_cast<int64_t>(separator.size()));
  }
  return runtime.MakeText(std::move(joined));
}

Value Items(Runtime& runtime, const Value& self, const Arguments& arguments) {
  arguments.Bind("items", {});
  std::vector<Value> pairs;
  if (!self.is_undefined()) {
    if (self.dict() == nullptr) Fail("Can only get item pairs from a mapping.");
    for (const auto& [key, value] : self.dict()->items) {
      pairs.push_back(runtime.MakeSequence({key, value}, SequenceType::kTuple));
    }
  }
  return runtime.MakeSequence(std::move(pairs), SequenceType::kIterator);
}

Value DictSort(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("dictsort", {"case_sensitive", "by", "reverse"});
  if (self.is_undefined()) Fail(UndefinedMessage(self));
  if (self.dict() == nullptr) Fail("'", TypeName(self), "' object has no attribute 'items'");
  const std::string by = bound[1] == nullptr ? "key" : TextArgument(*bound[1], "dictsort: by");
  if (by != "key" && by != "value") Fail("You can only sort by either \"key\" or \"value\"");
  const bool is_case_sensitive = bound[0] != nullptr && IsTrue(*bound[0]);
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : self.dict()->items) {
    keyed.emplace_back(SortKey(runtime, by == "key" ? key : value, nullptr, is_case_sensitive),
                       runtime.MakeSequence({key, value}, SequenceType::kTuple));
  }
  return runtime.MakeSequence(
      Sorted(runtime, std::move(keyed), bound[2] != nullptr && IsTrue(*bound[2])));
}

Value Sort(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("sort", {"reverse", "case_sensitive", "attribute"});
  const bool is_case_sensitive = bound[1] != nullptr && IsTrue(*bound[1]);
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : runtime.Iterate(self)) {
    if (!IsGiven(bound[2]) || bound[2]->text() == nullptr) {
      keyed.emplace_back(SortKey(runtime, item, bound[2], is_case_sensitive), item);
      continue;
    }
    std::vector<Value> keys;  // attribute="a,b" sorts by both
    for (const std::string_view name : Split(bound[2]->text()->bytes, ",", -1, false)) {
      const Value attribute = runtime.MakeText(std::string(name));
      keys.push_back(SortKey(runtime, item, &attribute, is_case_sensitive));
    }
    keyed.emplace_back(runtime.MakeSequence(std::move(keys)), item);
  }
  return runtime.MakeSequence(
      Sorted(runtime, std::move(keyed), bound[0] != nullptr && IsTrue(*bound[0])));
}

Value Unique(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("unique", {"case_sensitive", "attribute"});
  const bool is_case_sensitive = bound[0] != nullptr && IsTrue(*bound[0]);
  std::vector<Value> keys, items;
  for (const Value& item : runtime.Iterate(self)) {
    const Value key = SortKey(runtime, item, bound[1], is_case_sensitive);
    const bool is_new = std::none_of(keys.begin(), keys.end(), [&](const Value& seen) {
      return IsTrue(Apply(runtime, Operator::kEqual, seen, key));
    });
    if (!is_new) continue;
    keys.push_back(key);
    items.push_back(item);
  }
  return runtime.MakeSequence(std::move(items), SequenceType::kIterator);
}

template <bool is_max>
Value Extreme(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind(is_max ? "max" : "min", {"case_sensitive", "attribute"});
  const bool is_case_sensitive = bound[0] != nullptr && IsTrue(*bound[0]);
  Value best = Value::OfUndefined("No aggregated item, sequence was empty."), best_key;
  for (const Value& item : runtime.Iterate(self)) {
    const Value key = SortKey(runtime, item, bound[1], is_case_sensitive);
    const bool is_better =
        best.is_undefined() ||
        IsTrue(Apply(runtime, is_max ? Operator::kLess : Operator::kGreater, best_key, key));
    if (!is_better) continue;
    best = item;
    best_key = key;
  }
  return best;
}

Value Sum(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("sum", {"attribute", "start"});
  Value sum = bound[1] == nullptr ? Value(int64_t{0}) : *bound[1];
  if (sum.text() != nullptr) Fail("sum() can't sum strings");
  for (const Value& item : runtime.Iterate(self)) {
    sum = Apply(runtime, Operator::kAdd, sum,
                IsGiven(bound[0]) ? Attribute(runtime, item, *bound[0], nullptr) : item);
  }
  return sum;
}

// Applies the filter that the first argument names to each element, with the other arguments.
Value Map(Runtime& runtime, const Value& self, const Arguments& arguments) {
  std::vector<Value> mapped;
  if (arguments.positional.empty()) {
    const auto bound = arguments.Bind("map", {"attribute", "default"}, 1);
    for (const Value& item : runtime.Iterate(self)) {
      mapped.push_back(Attribute(runtime, item, *bound[0], bound[1]));
    }
  } else {
    const std::string& name = TextArgument(arguments.positional[0], "map: filter");
    const Builtin filter = FindFilter(name);
    if (filter == nullptr) Fail("no filter named '", name, "'");
    // Each argument can name `map` again, which then has one argument less.
    if (arguments.positional.size() > kMaxSyntaxDepth) {
      FailLimit("map: more arguments than the limit of ", kMaxSyntaxDepth);
    }
    Arguments rest = arguments;
    rest.positional.erase(rest.positional.begin());
    for (const Value& item : runtime.Iterate(self)) mapped.push_back(filter(runtime, item, rest));
  }
  return runtime.MakeSequence(std::move(mapped), SequenceType::kIterator);
}

// Implements select, reject, selectattr and rejectattr, by the named test or else by truth.
template <bool by_attribute, bool keeps_true>
Value Choose(Runtime& runtime, const Value& self, const Arguments& arguments) {
  Arguments rest = arguments;
  Value attribute;
  auto take_first = [&] {
    Value first = rest.positional.front();
    rest.positional.erase(rest.positional.begin());
    return first;
  };
  if (by_attribute) {
    if (rest.positional.empty()) Fail("missing parameter for attribute name");
    attribute = take_first();
  }
  Builtin test = nullptr;
  if (!rest.positional.empty()) {
    const std::string name = TextArgument(take_first(), "select: test");
    test = FindTest(name);
    if (test == nullptr) Fail("no test named '", name, "'");
  }
  std::vector<Value> chosen;
  for (const Value& item : runtime.Iterate(self)) {
    const Value value = by_attribute ? Attribute(runtime, item, attribute, nullptr) : item;
    const bool holds = IsTrue(test == nullptr ? value : test(runtime, value, rest));
    if (holds == keeps_true) chosen.push_back(item);
  }
  return runtime.MakeSequence(std::move(chosen), SequenceType::kIterator);
}

Value Batch(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("batch", {"linecount", "fill_with"}, 1);
  const int64_t size = ToInteger(*bound[0], "batch: linecount");
  if (size < 1) Fail("batch: linecount ", size, " is not positive");
  std::vector<Value> batches, batch;
  for (const Value& item : runtime.Iterate(self)) {
    if (static_cast<int64_t>(batch.size()) == size) {
      batches.push_back(runtime.MakeSequence(std::exchange(batch, {})));
    }
    batch.push_back(item);
  }
  if (IsGiven(bound[1]) && !batch.empty()) {
    runtime.Charge((std::min(size, kMaxAllocatedBytes) - static_cast<int64_t>(batch.size())) *
                   static_cast<int64_t>(sizeof(Value)));
    batch.resize(static_cast<size_t>(size), *bound[1]);
  }
  if (!batch.empty()) batches.push_back(runtime.MakeSequence(std::move(batch)));
  return runtime.MakeSequence(std::move(batches), SequenceType::kIterator);
}

Value Attr(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.Bind("attr", {"name"}, 1);
  const std::string& name = TextArgument(*bound[0], "attr: name");
  // Only attributes count, never a mapping's items.
  if (self.dict() != nullptr && FindDictMethod(name) == nullptr) {
    return Value::OfUndefined(Concat("'dict object' has no attribute '", name, "'"));
  }
  return GetAttribute(runtime, self, name);
}

}  // namespace

Builtin FindSequenceFilter(std::string_view name) {
  static constexpr std::pair<std::string_view, Builtin> kFilters[] = {
      {"attr", Attr},
      {"batch", Batch},
      {"count", LengthFilter},
      {"dictsort", DictSort},
      {"first", First},
      {"items", Items},
      {"join", Join},
      {"last", Last},
      {"length", LengthFilter},
      {"list", ListFilter},
      {"map", Map},
      {"max", Extreme<true>},
      {"min", Extreme<false>},
      {"reject", Choose<false, false>},
      {"rejectattr", Choose<true, false>},
      {"reverse", Reverse},
      {"select", Choose<false, true>},
      {"selectattr", Choose<true, true>},
      {"sort", Sort},
      {"sum", Sum},
      {"unique", Unique},
  };
  return FindIn(kFilters, name);
}

}  // namespace taopd::jinja
