// The precompiled header of the tests that use LibTorch.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/pch/torch.h"
