#include "common/text/jinja/runtime/runtime.h"

#include <algorithm>

#include "common/text/jinja/error.h"
#include "common/text/jinja/limits.h"
#include "common/text/jinja/values/python_text.h"

namespace taopd::jinja {

void Runtime::Step(int64_t num_steps) {
  num_steps_ += num_steps;
  if (num_steps_ > kMaxSteps) FailLimit("more steps than the limit of ", kMaxSteps);
}

void Runtime::Charge(int64_t size_bytes) {
  Scan(static_cast<size_t>(size_bytes));
  allocated_bytes_ += size_bytes;
  if (allocated_bytes_ > kMaxAllocatedBytes) {
    FailLimit("values of more bytes than the limit of ", kMaxAllocatedBytes);
  }
}

Value Runtime::MakeText(std::string bytes, bool is_safe) {
  constexpr int64_t kOverhead = 64;
  Charge(static_cast<int64_t>(bytes.size()) + kOverhead);
  return Value::OfText(std::move(bytes), is_safe);
}

Value Runtime::MakeSequence(std::vector<Value> items, SequenceType type) {
  Charge(static_cast<int64_t>(sizeof(Sequence) + items.size() * sizeof(Value)));
  auto sequence = std::make_shared<Sequence>();
  sequence->type = type;
  for (const Value& item : items) sequence->depth = std::max(sequence->depth, 1 + item.depth());
  if (sequence->depth > kMaxValueDepth) {
    FailLimit("list nested deeper than the limit of ", kMaxValueDepth);
  }
  sequence->items = std::move(items);
  return Value(std::shared_ptr<const Sequence>(std::move(sequence)));
}

Value Runtime::MakeDict(std::vector<std::pair<Value, Value>> items) {
  Charge(static_cast<int64_t>(sizeof(Dict) + items.size() * 2 * sizeof(Value)));
  auto dict = std::make_shared<Dict>();
  for (auto& [key, value] : items) {
    if (key.is_list() || key.dict() != nullptr) Fail("unhashable type: '", TypeName(key), "'");
    ChargeKeyComparisons(*this, key, dict->items.size());
    // The first of several equal keys stays, with the last value.
    const auto found =
        std::find_if(dict->items.begin(), dict->items.end(),
                     [&key = key](const auto& entry) { return AreEqual(entry.first, key); });
    if (found != dict->items.end()) {
      found->second = std::move(value);
      continue;
    }
    dict->depth = std::max({dict->depth, 1 + key.depth(), 1 + value.depth()});
    dict->items.emplace_back(std::move(key), std::move(value));
  }
  for (const auto& [key, value] : dict->items)
    dict->depth = std::max(dict->depth, 1 + value.depth());
  if (dict->depth > kMaxValueDepth) {
    FailLimit("dict nested deeper than the limit of ", kMaxValueDepth);
  }
  return Value(std::shared_ptr<const Dict>(std::move(dict)));
}

Value Runtime::MakeNamespace() {
  Charge(sizeof(Namespace) + 64);
  namespaces_.push_back(std::make_shared<Namespace>());
  return Value(namespaces_.back());
}

Value Runtime::MakeCallable(std::string type_name, std::string name,
                            std::function<Value(Runtime&, const Arguments&)> call) {
  Charge(sizeof(Callable) + 128);
  return Value(std::shared_ptr<const Callable>(std::make_shared<Callable>(
      Callable{std::move(type_name), std::move(name), std::move(call)})));
}

std::vector<Value> Runtime::Iterate(const Value& value) {
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (const Sequence* sequence = value.sequence()) {
    const size_t begin = sequence->position;
    if (sequence->type == SequenceType::kIterator) sequence->position = sequence->items.size();
    items.assign(sequence->items.begin() + static_cast<ptrdiff_t>(begin), sequence->items.end());
  } else if (const Dict* dict = value.dict()) {
    for (const auto& [key, item] : dict->items) items.push_back(key);
  } else if (const Text* text = value.text()) {
    for (const std::string_view character : CodePoints(text->bytes)) {
      items.push_back(MakeText(std::string(character)));
    }
  } else {
    Fail("'", TypeName(value), "' object is not iterable");
  }
  Charge(static_cast<int64_t>(items.size() * sizeof(Value)));
  Step(static_cast<int64_t>(items.size()));
  return items;
}

Value Runtime::Call(const Value& callee, const Arguments& arguments) {
  Step();
  if (callee.is_undefined()) Fail(UndefinedMessage(callee));
  if (callee.callable() == nullptr) Fail("'", TypeName(callee), "' object is not callable");
  return callee.callable()->call(*this, arguments);
}

std::vector<const Value*> Arguments::Bind(std::string_view function,
                                          std::initializer_list<std::string_view> names,
                                          size_t num_required) const {
  if (positional.size() > names.size()) {
    Fail(function, " takes at most ", names.size(), " arguments, ", positional.size(), " given");
  }
  std::vector<const Value*> bound(names.size(), nullptr);
  for (size_t i = 0; i < positional.size(); ++i) bound[i] = &positional[i];
  for (const auto& [name, value] : keywords) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) Fail(function, " has no argument '", name, "'");
    const auto index = static_cast<size_t>(found - names.begin());
    if (bound[index] != nullptr) Fail(function, " got two values for '", name, "'");
    bound[index] = &value;
  }
  for (size_t i = 0; i < num_required; ++i) {
    if (bound[i] == nullptr) Fail(function, " needs the argument '", names.begin()[i], "'");
  }
  return bound;
}

const std::string& TextArgument(const Value& value, std::string_view parameter) {
  if (value.text() == nullptr) Fail(parameter, " is ", TypeName(value), ", not a string");
  return value.text()->bytes;
}

}  // namespace taopd::jinja
