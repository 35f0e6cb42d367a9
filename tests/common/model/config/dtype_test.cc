#include "common/model/config/dtype.h"

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

TEST(Dtype, HasANameInEachFile) {
  for (const auto& [dtype, in_config, in_safetensors] :
       {std::tuple{DataType::kFloat32, "float32", "F32"},
        {DataType::kBFloat16, "bfloat16", "BF16"},
        {DataType::kFloat16, "float16", "F16"}}) {
    EXPECT_EQ(ConfigDtype(dtype), in_config);
    EXPECT_EQ(SafetensorsDtype(dtype), in_safetensors);
    EXPECT_EQ(DataTypeOfSafetensors(in_safetensors), dtype);
    ASSERT_OK_AND_ASSIGN(const DataType named, ParseDtype(in_config, ""));
    EXPECT_EQ(named, dtype);
    ASSERT_OK_AND_ASSIGN(const DataType stored, ParseDtype("auto", in_config));
    EXPECT_EQ(stored, dtype);
  }
}

TEST(Dtype, OtherNamesAreRefused) {
  EXPECT_EQ(DataTypeOfSafetensors("I64"), std::nullopt);
  EXPECT_ERROR(ParseDtype("float8", "float32"), kInvalidArgument,
               "dtype \"float8\" is not implemented");
  EXPECT_ERROR(ParseDtype("auto", "float8"), kInvalidArgument,
               "dtype \"float8\" of the stored weights");
}

}  // namespace
}  // namespace taopd::testing
