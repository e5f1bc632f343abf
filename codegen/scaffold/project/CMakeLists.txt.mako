cmake_minimum_required(VERSION 3.26...4.4)
project(${name} LANGUAGES CXX)
find_package(Kernelmint REQUIRED)
kernelmint_add_pack(${name} GENERATED generated DESTINATION ${name}/_pack)
