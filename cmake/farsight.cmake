# farsight_library(NAME SOURCES ... [DEPS ...] [TESTS ...] [TEST_DEPS ...])
#   one static library per folder of src/, and one test program farsight_NAME_test for its *_test.cc files.
# Every source and test is listed by name: scripts/check_tree.py fails when a file on disk is in no list.
add_library(farsight_flags INTERFACE)
target_include_directories(farsight_flags INTERFACE
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/src>
  $<INSTALL_INTERFACE:include>)
add_compile_options(-Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor -Woverloaded-virtual
  -fno-math-errno -ffp-contract=off)
if(FARSIGHT_WERROR)
  add_compile_options(-Werror)
endif()
target_compile_features(farsight_flags INTERFACE cxx_std_20)
if(FARSIGHT_SANITIZE)
  add_compile_options(-fsanitize=${FARSIGHT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${FARSIGHT_SANITIZE})
endif()
if(FARSIGHT_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# For what is short to run and long to compile: tests and the command line. At -O1 g++ 12 sees overflows in std::string's
# own code that are not there.
set(farsight_light_options $<$<CONFIG:Release>:-O1>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND farsight_light_options $<$<CONFIG:Release>:-Wno-array-bounds> $<$<CONFIG:Release>:-Wno-restrict>
       $<$<CONFIG:Release>:-Wno-stringop-overflow> $<$<CONFIG:Release>:-Wno-stringop-overread>)
endif()

# The headers that nearly every file includes, compiled once for the libraries and once for the tests (without which a
# build takes almost twice as long). Every file still includes what it uses: a build with FARSIGHT_PCH=OFF shows it.
if(FARSIGHT_PCH)
  set(farsight_std_headers <algorithm> <array> <atomic> <chrono> <cmath> <cstdint> <cstring> <functional> <map> <memory>
      <optional> <span> <string> <string_view> <unordered_map> <utility> <variant> <vector>)
  add_library(farsight_pch STATIC ${CMAKE_SOURCE_DIR}/cmake/pch.cc)
  target_link_libraries(farsight_pch PRIVATE farsight_flags)
  target_precompile_headers(farsight_pch PRIVATE ${farsight_std_headers})
  if(FARSIGHT_TESTS)
    add_library(farsight_test_pch STATIC ${CMAKE_SOURCE_DIR}/cmake/pch.cc)
    target_link_libraries(farsight_test_pch PRIVATE farsight_flags GTest::gtest GTest::gmock)
    target_compile_options(farsight_test_pch PRIVATE ${farsight_light_options})
    target_precompile_headers(farsight_test_pch PRIVATE ${farsight_std_headers} <gtest/gtest.h> <gmock/gmock.h>)
  endif()
endif()

function(farsight_reuse_pch target pch)
  if(FARSIGHT_PCH)
    target_precompile_headers(${target} REUSE_FROM ${pch})
  endif()
endfunction()

function(farsight_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;TESTS;TEST_DEPS" ${ARGN})
  add_library(farsight_${name} STATIC ${ARG_SOURCES})
  set_target_properties(farsight_${name} PROPERTIES EXPORT_NAME ${name})
  target_link_libraries(farsight_${name} PUBLIC farsight_flags ${ARG_DEPS})
  farsight_reuse_pch(farsight_${name} farsight_pch)
  if(FARSIGHT_TESTS AND ARG_TESTS)
    add_executable(farsight_${name}_test ${ARG_TESTS})
    target_link_libraries(farsight_${name}_test PRIVATE farsight_${name} ${ARG_TEST_DEPS} GTest::gtest_main GTest::gmock)
    target_compile_definitions(farsight_${name}_test PRIVATE FARSIGHT_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    target_compile_options(farsight_${name}_test PRIVATE ${farsight_light_options})
    farsight_reuse_pch(farsight_${name}_test farsight_test_pch)
    add_test(NAME ${name} COMMAND farsight_${name}_test)
  endif()
endfunction()
