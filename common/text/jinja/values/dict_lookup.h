// Look-ups in dicts whose cost counts towards the rendering's limits. The cost of a comparison
// grows with the size of its values, and a small expression can make a large value, so the cost is
// counted before the comparison.
#pragma once

#include "common/text/jinja/runtime/runtime.h"
#include "common/text/jinja/values/value.h"

namespace taopd::jinja {

// Counts the steps of one comparison of `value` with any other.
void ChargeComparison(Runtime& runtime, const Value& value);

// dict.Find(key), with its cost counted.
const Value* FindKey(Runtime& runtime, const Dict& dict, const Value& key);
// Counts the steps of comparing `key` with num_keys others.
void ChargeKeyComparisons(Runtime& runtime, const Value& key, size_t num_keys);

}  // namespace taopd::jinja
