#include "common/io/safetensors/safetensors.h"

#include <sys/stat.h>

#include "common/base/random.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using ::testing::UnorderedElementsAre;

std::string Length(uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>((value >> (8 * i)) & 0xff);
  return bytes;
}

std::string Bytes(const TensorView& view) {
  return {reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size()};
}

// A tensor over its own bytes.
struct OwnedTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string data;
  TensorToWrite View() const { return {name, dtype, shape, std::as_bytes(std::span(data))}; }
};

class Safetensors : public ::testing::Test {
 protected:
  absl::Status OpenRaw(const std::string& content) {
    WriteFile(dir_.File("raw.safetensors"), content);
    return SafetensorsFile::Open(dir_.File("raw.safetensors")).status();
  }
  absl::Status OpenHeader(const std::string& header, const std::string& data = "") {
    return OpenRaw(Length(header.size()) + header + data);
  }
  void WriteShard(const std::string& file, const std::vector<std::string>& names) {
    std::vector<OwnedTensor> tensors;
    for (const std::string& name : names) tensors.push_back({name, "U8", {1}, name.substr(0, 1)});
    std::vector<TensorToWrite> views;
    for (const OwnedTensor& tensor : tensors) views.push_back(tensor.View());
    ASSERT_OK(WriteSafetensors(dir_.File(file), views));
  }
  absl::Status OpenIndex(const std::string& weight_map) {
    WriteFile(dir_.File("model.safetensors.index.json"),
              "{\"metadata\": {}, \"weight_map\": " + weight_map + "}");
    return OpenSafetensorsModel(dir_.path()).status();
  }
  TempDir dir_;
};

TEST_F(Safetensors, ReadsWhatPythonWrote) {
  ASSERT_OK_AND_ASSIGN(
      const auto file,
      SafetensorsFile::Open(SourcePath("tests/common/io/golden/python_written.safetensors")));
  // The table of golden/make_safetensors.py.
  const std::vector<OwnedTensor> expected = {
      {"embed.weight", "F32", {3, 5}, std::string(60, 0)},
      {"half", "F16", {4}, std::string(8, 0)},
      {"brain", "BF16", {2, 2, 2}, std::string(16, 0)},
      {"ids", "I64", {2}, std::string(16, 0)},
      {"mask", "BOOL", {3}, std::string(3, 0)},
      {"scalar", "F64", {}, std::string(8, 0)},
      {"empty", "F32", {0, 7}, ""},
      {"quoted \"name\" \xc3\xa9", "U8", {1}, std::string(1, 0)},
  };
  EXPECT_EQ(file->tensors().size(), expected.size());
  for (size_t t = 0; t < expected.size(); ++t) {
    ASSERT_TRUE(file->tensors().contains(expected[t].name)) << expected[t].name;
    const TensorView& view = file->tensors().at(expected[t].name);
    EXPECT_EQ(view.dtype, expected[t].dtype);
    EXPECT_EQ(view.shape, expected[t].shape);
    std::string data = expected[t].data;
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>((31 * t + i) % 256);
    EXPECT_EQ(Bytes(view), data) << expected[t].name;
  }
  EXPECT_THAT(file->metadata(),
              UnorderedElementsAre(Pair("format", "pt"), Pair("note", "caf\xc3\xa9")));
}

TEST_F(Safetensors, RoundTripOfRandomTensors) {
  RandomStream random(11);
  const std::vector<std::string> dtypes = {"BOOL", "U8",  "I8",  "F8_E4M3", "I16", "F16",
                                           "BF16", "I32", "F32", "I64",     "F64", "C64"};
  for (int trial = 0; trial < 30; ++trial) {
    std::vector<OwnedTensor> tensors(random.NextBelow(8));
    for (size_t t = 0; t < tensors.size(); ++t) {
      tensors[t].name = Concat("t", random.NextBelow(1000), ".", t);
      tensors[t].dtype = dtypes[random.NextBelow(dtypes.size())];
      ASSERT_OK_AND_ASSIGN(int64_t size_bytes, SafetensorsDtypeSize(tensors[t].dtype));
      for (uint64_t rank = random.NextBelow(4); rank > 0; --rank) {
        tensors[t].shape.push_back(static_cast<int64_t>(random.NextBelow(5)));
        size_bytes *= tensors[t].shape.back();
      }
      for (int64_t i = 0; i < size_bytes; ++i) {
        tensors[t].data += static_cast<char>(random.NextBelow(256));
      }
    }
    std::vector<TensorToWrite> views;
    for (const OwnedTensor& tensor : tensors) views.push_back(tensor.View());
    const std::map<std::string, std::string> metadata = {{"trial", Concat(trial)}, {"", "\"\n"}};
    ASSERT_OK(WriteSafetensors(dir_.File("f"), views, metadata));

    ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Open(dir_.File("f")));
    EXPECT_EQ(file->metadata(), metadata);
    ASSERT_EQ(file->tensors().size(), tensors.size());
    const std::byte* next = nullptr;
    for (const OwnedTensor& tensor : tensors) {
      const TensorView& view = file->tensors().at(tensor.name);
      EXPECT_EQ(view.dtype, tensor.dtype);
      EXPECT_EQ(view.shape, tensor.shape);
      EXPECT_EQ(Bytes(view), tensor.data);
      if (next == nullptr) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(view.bytes.data()) % 8, 0u);  // data starts aligned
      } else {
        EXPECT_EQ(view.bytes.data(), next);  // in the given order
      }
      next = view.bytes.data() + view.bytes.size();
    }
  }
}

TEST_F(Safetensors, ViewsOutliveTheOpenFunctionAndTheFileName) {
  WriteShard("f", {"abc"});
  ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Open(dir_.File("f")));
  std::filesystem::remove(dir_.File("f"));
  EXPECT_EQ(Bytes(file->tensors().at("abc")), "a");
}

TEST_F(Safetensors, LegalEdges) {
  EXPECT_OK(OpenHeader("{}"));
  EXPECT_OK(OpenHeader("{}      "));
  EXPECT_OK(OpenHeader(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", "1234"));
  EXPECT_OK(OpenHeader(R"({"a":{"dtype":"F32","shape":[2,0],"data_offsets":[0,0]}})"));
  // Zero sizes are at the start, in between and at the end; header order is not file order.
  EXPECT_OK(OpenHeader(R"({"z":{"dtype":"I8","shape":[0],"data_offsets":[2,2]},
                           "b":{"dtype":"I8","shape":[1],"data_offsets":[1,2]},
                           "m":{"dtype":"I8","shape":[0],"data_offsets":[1,1]},
                           "a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},
                           "s":{"dtype":"I8","shape":[0],"data_offsets":[0,0]}})",
                       "xy"));
}

TEST_F(Safetensors, BadHeaderLengths) {
  EXPECT_ERROR(OpenRaw(""), kDataLoss, "too few for a header");
  EXPECT_ERROR(OpenRaw("1234567"), kDataLoss, "has 7 bytes");
  EXPECT_ERROR(OpenRaw(Length(0)), kDataLoss, "does not start with {");
  EXPECT_ERROR(OpenRaw(Length(3) + "{}"), kDataLoss, "header of 3 bytes is longer than the file");
  EXPECT_ERROR(OpenRaw(Length(100'000'001) + "{}"), kDataLoss, "exceeds the limit of 100000000");
  EXPECT_ERROR(OpenRaw(Length(~uint64_t{0}) + "{}"), kDataLoss, "exceeds the limit");
  EXPECT_ERROR(OpenRaw(Length(~uint64_t{0} - 7) + "{}"), kDataLoss, "exceeds the limit");
}

TEST_F(Safetensors, BadHeaderText) {
  EXPECT_ERROR(OpenHeader(" {}"), kDataLoss, "does not start with {");
  EXPECT_ERROR(OpenHeader("[]"), kDataLoss, "does not start with {");
  EXPECT_ERROR(OpenHeader("{\"a\xff\": 1}"), kDataLoss, "not JSON");
  EXPECT_ERROR(OpenHeader("{\"a\": }"), kDataLoss, "not JSON");
  EXPECT_ERROR(OpenHeader(std::string("{}\0\0", 4)), kDataLoss, "NUL byte");
  EXPECT_ERROR(OpenHeader("{} {}"), kDataLoss, "not JSON");
  EXPECT_ERROR(OpenHeader("{\"a\":" + std::string(200'000, '[')), kDataLoss, "nested deeper");
  EXPECT_ERROR(OpenHeader(R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},
                              "a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}})",
                          "x"),
               kDataLoss, "duplicate key \"a\"");
}

TEST_F(Safetensors, BadMetadata) {
  EXPECT_ERROR(OpenHeader(R"({"__metadata__": []})"), kDataLoss, "__metadata__ is not an object");
  EXPECT_ERROR(OpenHeader(R"({"__metadata__": {"k": 1}})"), kDataLoss, "\"k\" is not a string");
  EXPECT_ERROR(OpenHeader(R"({"__metadata__": {"k": "1", "k": "2"}})"), kDataLoss, "duplicate");
}

TEST_F(Safetensors, BadTensorEntries) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"(1)", "is not an object"},
      {R"({"shape":[1],"data_offsets":[0,1]})", "no dtype"},
      {R"({"dtype":"I8","data_offsets":[0,1]})", "no shape"},
      {R"({"dtype":"I8","shape":[1]})", "no data_offsets"},
      {R"({"dtype":"I8","shape":[1],"data_offsets":[0,1],"x":0})", "unknown field \"x\""},
      {R"({"dtype":7,"shape":[1],"data_offsets":[0,1]})", "dtype is not a string"},
      {R"({"dtype":"F31","shape":[1],"data_offsets":[0,1]})", "dtype \"F31\" is unknown"},
      {R"({"dtype":"F4","shape":[2],"data_offsets":[0,1]})", "smaller than a byte"},
      {R"({"dtype":"I8","shape":1,"data_offsets":[0,1]})", "shape is not an array"},
      {R"({"dtype":"I8","shape":[-1],"data_offsets":[0,1]})", "a dimension is not an integer"},
      {R"({"dtype":"I8","shape":[1.0],"data_offsets":[0,1]})", "a dimension is not an integer"},
      {R"({"dtype":"I8","shape":["1"],"data_offsets":[0,1]})", "a dimension is not an integer"},
      {R"({"dtype":"I8","shape":[9223372036854775808],"data_offsets":[0,1]})", "2^63 - 1"},
      {R"({"dtype":"I8","shape":[1],"data_offsets":[0]})", "data_offsets is not [begin, end]"},
      {R"({"dtype":"I8","shape":[1],"data_offsets":[0,1,2]})", "is not [begin, end]"},
      {R"({"dtype":"I8","shape":[1],"data_offsets":[-1,1]})", "data_offsets[0] is not an integer"},
      {R"({"dtype":"I8","shape":[1],"data_offsets":[0,1.5]})", "data_offsets[1] is not an integer"},
      {R"({"dtype":"I8","shape":[2],"data_offsets":[0,1]})", "span 1 bytes"},
      {R"({"dtype":"I16","shape":[1],"data_offsets":[0,1]})", "need 2"},
      {R"({"dtype":"I8","shape":[1],"data_offsets":[1,0]})", "do not continue at byte 0"},
      {R"({"dtype":"I8","shape":[],"data_offsets":[1,2]})", "do not continue at byte 0"},
      {R"({"dtype":"I8","shape":[4294967296,4294967296],"data_offsets":[0,1]})", "overflows"},
      {R"({"dtype":"I64","shape":[1152921504606846976],"data_offsets":[0,0]})", "overflows"},
      {R"({"dtype":"I8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807]})",
       "the file holds 1"},
  };
  for (const auto& [entry, message] : cases) {
    SCOPED_TRACE(entry);
    EXPECT_ERROR(OpenHeader("{\"t\":" + entry + "}", "x"), kDataLoss, message);
    EXPECT_THAT(std::string(OpenHeader("{\"t\":" + entry + "}", "x").message()),
                HasSubstr("raw.safetensors"));
  }
}

TEST_F(Safetensors, DataMustBeTiledExactly) {
  auto two = [&](const std::string& a, const std::string& b, const std::string& data) {
    return OpenHeader(R"({"a":{"dtype":"I8","shape":[2],"data_offsets":)" + a +
                          R"(},"b":{"dtype":"I8","shape":[2],"data_offsets":)" + b + "}}",
                      data);
  };
  EXPECT_OK(two("[0,2]", "[2,4]", "1234"));
  EXPECT_OK(two("[2,4]", "[0,2]", "1234"));
  EXPECT_ERROR(two("[0,2]", "[3,5]", "12345"), kDataLoss, "\"b\": data_offsets [3, 5] do not");
  EXPECT_ERROR(two("[0,2]", "[1,3]", "123"), kDataLoss, "continue at byte 2");
  EXPECT_ERROR(two("[0,2]", "[0,2]", "12"), kDataLoss, "continue at byte 2");
  EXPECT_ERROR(two("[1,3]", "[3,5]", "12345"), kDataLoss, "continue at byte 0");
  EXPECT_ERROR(two("[0,2]", "[2,4]", "12345"), kDataLoss,
               "need 4 bytes of data, but the file holds 5");
  EXPECT_ERROR(two("[0,2]", "[2,4]", "123"), kDataLoss, "the file holds 3");
  EXPECT_ERROR(OpenHeader("{}", "x"), kDataLoss, "need 0 bytes of data, but the file holds 1");
}

TEST_F(Safetensors, EveryTruncationIsAnError) {
  const std::string header =
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})";
  const std::string good = Length(header.size()) + header + "12345678";
  ASSERT_OK(OpenRaw(good));
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_FALSE(OpenRaw(good.substr(0, size)).ok());
}

TEST_F(Safetensors, NotARegularFile) {
  EXPECT_ERROR(SafetensorsFile::Open(dir_.path()), kDataLoss, "not a regular file");
  ASSERT_EQ(mkfifo(dir_.File("pipe").c_str(), 0600), 0);
  EXPECT_ERROR(SafetensorsFile::Open(dir_.File("pipe")), kDataLoss, "not a regular file");
  EXPECT_ERROR(SafetensorsFile::Open(dir_.File("no")), kNotFound, "no");
}

TEST_F(Safetensors, WriterRefusesWhatTheReaderWould) {
  const std::string data = "1234";
  const auto bytes = std::as_bytes(std::span(data));
  const std::string path = dir_.File("w");
  EXPECT_ERROR(WriteSafetensors(path, {{"a", "I8", {4}, bytes}, {"a", "I8", {4}, bytes}}),
               kInvalidArgument, "\"a\": the name is taken");
  EXPECT_ERROR(WriteSafetensors(path, {{"__metadata__", "I8", {4}, bytes}}), kInvalidArgument,
               "reserved");
  EXPECT_ERROR(WriteSafetensors(path, {{"a", "I8", {5}, bytes}}), kInvalidArgument, "need 5");
  EXPECT_ERROR(WriteSafetensors(path, {{"a", "I8", {-4}, bytes}}), kInvalidArgument,
               "dimension -4");
  EXPECT_ERROR(WriteSafetensors(path, {{"a", "int8", {4}, bytes}}), kInvalidArgument,
               "\"int8\" is unknown");
  EXPECT_ERROR(WriteSafetensors(path, {{"\xff", "I8", {4}, bytes}}), kInvalidArgument, "not UTF-8");
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(Safetensors, ModelOfOneFileOrOfShards) {
  EXPECT_ERROR(OpenSafetensorsModel(dir_.path()), kNotFound,
               "neither model.safetensors nor model.safetensors.index.json");
  WriteShard("s1.safetensors", {"a", "b"});
  WriteShard("s2.safetensors", {"c"});
  ASSERT_OK(OpenIndex(R"({"a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors"})"));
  ASSERT_OK_AND_ASSIGN(SafetensorsModel model, OpenSafetensorsModel(dir_.path()));
  EXPECT_EQ(model.files.size(), 2u);
  EXPECT_EQ(model.tensors.size(), 3u);
  EXPECT_EQ(Bytes(model.tensors.at("c").first), "c");
  EXPECT_EQ(model.tensors.at("c").second->path(), dir_.File("s2.safetensors"));

  WriteShard("model.safetensors", {"x"});
  ASSERT_OK_AND_ASSIGN(model, OpenSafetensorsModel(dir_.path()));
  EXPECT_EQ(model.tensors.size(), 1u);
}

TEST_F(Safetensors, IndexAndShardsMustAgree) {
  WriteShard("s1.safetensors", {"a", "b"});
  WriteShard("s2.safetensors", {"c"});
  WriteShard("s3.safetensors", {"b"});
  EXPECT_ERROR(OpenIndex(R"({"a":"s1.safetensors","c":"s2.safetensors"})"), kDataLoss,
               "tensor \"b\" of " + dir_.File("s1.safetensors") + " is not in the index");
  EXPECT_ERROR(OpenIndex(R"({"a":"s1.safetensors","b":"s1.safetensors","d":"s1.safetensors"})"),
               kDataLoss, "tensor \"d\" is not in");
  EXPECT_ERROR(OpenIndex(R"({"a":"s1.safetensors","b":"s2.safetensors","c":"s2.safetensors"})"),
               kDataLoss, "tensor \"b\" is not in " + dir_.File("s2.safetensors"));
  EXPECT_ERROR(OpenIndex(R"({"a":"s1.safetensors","b":"s3.safetensors"})"), kDataLoss,
               "tensor \"b\" is in both");
  EXPECT_ERROR(OpenIndex(R"({"a":"s9.safetensors"})"), kDataLoss, "s9.safetensors");
  WriteFile(dir_.File("model.safetensors.index.json"), "{\"weight_map\": []}");
  EXPECT_ERROR(OpenSafetensorsModel(dir_.path()), kDataLoss, "no object weight_map");
}

TEST_F(Safetensors, IndexNamesOnlyBareFiles) {
  WriteShard("s1.safetensors", {"a"});
  for (const std::string name :
       {"../s1.safetensors", "/etc/s1.safetensors", "x/s1.safetensors", "./s1.safetensors", "..",
        "", ".safetensors", "s1.bin", "..\\\\s1.safetensors", "s1\\u0000.safetensors"}) {
    SCOPED_TRACE(name);
    EXPECT_ERROR(OpenIndex("{\"a\": \"" + name + "\"}"), kDataLoss, "is not the bare name");
  }
  EXPECT_ERROR(OpenIndex("{\"a\": 1}"), kDataLoss, "\"a\" names no file");
}

}  // namespace
}  // namespace taopd::testing
