// The precompiled header of the tests that do not use LibTorch.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/pch/base.h"
