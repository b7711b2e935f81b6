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

function(farsight_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;TESTS;TEST_DEPS" ${ARGN})
  add_library(farsight_${name} STATIC ${ARG_SOURCES})
  set_target_properties(farsight_${name} PROPERTIES EXPORT_NAME ${name})
  target_link_libraries(farsight_${name} PUBLIC farsight_flags ${ARG_DEPS})
  if(FARSIGHT_TESTS AND ARG_TESTS)
    add_executable(farsight_${name}_test ${ARG_TESTS})
    target_link_libraries(farsight_${name}_test PRIVATE farsight_${name} ${ARG_TEST_DEPS} GTest::gtest_main GTest::gmock)
    target_compile_definitions(farsight_${name}_test PRIVATE FARSIGHT_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    add_test(NAME ${name} COMMAND farsight_${name}_test)
  endif()
endfunction()
