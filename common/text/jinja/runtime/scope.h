// The variables of a running template. The template has one scope, and so have each pass of a loop,
// each macro call and each block that is rendered into a value. A look-up goes from the inner scope
// outwards. Not thread-safe.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "common/text/jinja/syntax/syntax.h"
#include "common/text/jinja/values/value.h"

namespace taopd::jinja {

struct Scope {
  explicit Scope(std::shared_ptr<Scope> outer_scope) : outer(std::move(outer_scope)) {}

  void Set(NameId name, Value value) {
    for (auto& [known, slot] : values) {
      if (known == name) {
        slot = std::move(value);
        return;
      }
    }
    values.emplace_back(name, std::move(value));
  }
  // Returns the innermost value of the name, or null if no scope has it.
  const Value* Find(NameId name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer.get()) {
      for (const auto& [known, value] : scope->values) {
        if (known == name) return &value;
      }
    }
    return nullptr;
  }

  std::shared_ptr<Scope> outer;
  std::vector<std::pair<NameId, Value>> values;
};

}  // namespace taopd::jinja
