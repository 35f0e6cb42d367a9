#include "server/structured/worker/xgrammar.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/reflection/accessor.h>

#include <exception>
#include <new>
#include <stdexcept>

namespace taopd {
namespace {

namespace ffi = tvm::ffi;

constexpr char kPrefix[] = "xgrammar.tvm_ffi_binding.";
constexpr size_t kMaxMessageBytes = 240;
constexpr int kRawBytes = 0;  // xgrammar::VocabType

ffi::Function Method(const char* type, const char* name) {
  return ffi::reflection::GetMethod(std::string(kPrefix) + type, name);
}

// Shortens "[12:00:00] /path/file.cc:83: what is wrong" to "what is wrong", in one line.
std::string Reason(std::string text) {
  if (text.starts_with('[')) {
    const size_t path = text.find(".cc:");
    const size_t colon = path == std::string::npos ? path : text.find(": ", path);
    if (colon != std::string::npos) text.erase(0, colon + 2);
  }
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  text.erase(text.find_last_not_of(' ') + 1);
  if (text.size() > kMaxMessageBytes) text = text.substr(0, kMaxMessageBytes) + "...";
  return text;
}

// Calls the function, which returns a StatusOr or a Status. An exception of it becomes
// INVALID_ARGUMENT.
template <typename Function>
auto CatchExceptions(const Function& function) -> decltype(function()) {
  try {
    return function();
  } catch (const ffi::Error& error) {
    const std::string message = error.message();
    if (message.find("bad_alloc") != std::string::npos)
      return InvalidArgument("it needs too much memory");
    return InvalidArgument(Reason(message));
  } catch (const std::bad_alloc&) {
    return InvalidArgument("it needs too much memory");
  } catch (const std::exception& error) {
    return InvalidArgument(Reason(error.what()));
  }
}

ffi::Array<int64_t> IdsOf(const std::vector<int32_t>& ids) {
  ffi::Array<int64_t> out;
  for (const int32_t id : ids) out.push_back(id);
  return out;
}

}  // namespace

absl::Status GrammarMatcher::Accept(int32_t id) {
  return CatchExceptions([&]() -> absl::Status {
    if (!methods_->accept(matcher_, int64_t{id}, false).cast<bool>())
      return InvalidArgument("the grammar does not allow the id ", id);
    has_ended_ = methods_->has_ended(matcher_).cast<bool>();
    return absl::OkStatus();
  });
}

absl::StatusOr<bool> GrammarMatcher::Fill(std::span<uint64_t> bits) {
  return CatchExceptions([&]() -> absl::StatusOr<bool> {
    int64_t shape[1] = {(methods_->vocab_size + 31) / 32};  // words of 32 bits
    int64_t strides[1] = {1};
    DLTensor mask = {};
    mask.data = bits.data();
    mask.device = {kDLCPU, 0};
    mask.ndim = 1;
    mask.dtype = {kDLInt, 32, 1};
    mask.shape = shape;
    mask.strides = strides;
    return methods_->fill(matcher_, &mask, int64_t{0}, false).cast<bool>();
  });
}

CompiledGrammar::CompiledGrammar(const MatcherMethods* methods, ffi::Any compiled)
    : methods_(methods),
      compiled_(std::move(compiled)),
      num_bytes_(Method("CompiledGrammar", "memory_size_bytes")(compiled_).cast<int64_t>()) {}

absl::StatusOr<GrammarMatcher> CompiledGrammar::NewMatcher(
    const std::vector<int32_t>& stop_ids) const {
  return CatchExceptions([&]() -> absl::StatusOr<GrammarMatcher> {
    return GrammarMatcher(methods_, methods_->make(compiled_, IdsOf(stop_ids), false, int64_t{-1},
                                                   ffi::Any(nullptr)));
  });
}

GrammarLibrary::GrammarLibrary(const std::vector<std::string>& token_bytes,
                               const std::vector<int32_t>& eos_ids)
    : methods_{.make = Method("GrammarMatcher", "__ffi_init__"),
               .accept = Method("GrammarMatcher", "accept_token"),
               .fill = Method("GrammarMatcher", "fill_next_token_bitmask"),
               .has_ended = Method("GrammarMatcher", "is_terminated"),
               .vocab_size = static_cast<int64_t>(token_bytes.size())} {
  ffi::Array<ffi::Any> vocabulary;
  vocabulary.reserve(methods_.vocab_size);
  for (const std::string& bytes : token_bytes) vocabulary.push_back(ffi::Bytes(bytes));
  const ffi::Any tokenizer = Method("TokenizerInfo", "__ffi_init__")(
      vocabulary, int64_t{kRawBytes}, methods_.vocab_size, IdsOf(eos_ids), false);
  constexpr int64_t kThreads = 1;  // with one, the library starts no threads of its own
  compiler_ = Method("GrammarCompiler", "__ffi_init__")(tokenizer, kThreads, false, int64_t{-1});
}

absl::StatusOr<std::unique_ptr<GrammarLibrary>> GrammarLibrary::Load(
    const std::vector<std::string>& token_bytes, const std::vector<int32_t>& eos_ids) {
  return CatchExceptions([&]() -> absl::StatusOr<std::unique_ptr<GrammarLibrary>> {
    return std::unique_ptr<GrammarLibrary>(new GrammarLibrary(token_bytes, eos_ids));
  });
}

absl::StatusOr<CompiledGrammar> GrammarLibrary::Compile(const GrammarSpec& spec) {
  return CatchExceptions([&]() -> absl::StatusOr<CompiledGrammar> {
    return CompiledGrammar(&methods_, CompileOrThrow(spec));
  });
}

ffi::Any GrammarLibrary::CompileOrThrow(const GrammarSpec& spec) {
  const ffi::String text(spec.text);
  const ffi::Any none(nullptr);
  switch (spec.kind) {
    case GrammarSpec::Kind::kJsonSchema: {
      // Strict, as in vLLM: no additional properties or items unless the schema allows them.
      const ffi::Any separators =
          spec.any_whitespace ? none : ffi::Any(ffi::Array<ffi::String>{",", ":"});
      return Method("GrammarCompiler", "compile_json_schema")(compiler_, text, spec.any_whitespace,
                                                              none, separators, true, none, false);
    }
    case GrammarSpec::Kind::kRegex:
      return Method("GrammarCompiler", "compile_regex")(compiler_, text);
    case GrammarSpec::Kind::kEbnf:
      return Method("GrammarCompiler", "compile_grammar_from_strings")(compiler_, text,
                                                                       ffi::String("root"));
    case GrammarSpec::Kind::kLark:
      return Method("GrammarCompiler", "compile_lark")(compiler_, text, ffi::Array<ffi::String>(),
                                                       ffi::Array<ffi::Any>());
    case GrammarSpec::Kind::kStructuralTag:
      return Method("GrammarCompiler", "compile_structural_tag")(compiler_, text);
  }
  throw std::invalid_argument("unknown kind of grammar");
}

}  // namespace taopd
