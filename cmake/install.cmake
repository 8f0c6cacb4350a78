# cmake --install: both programs (apps/CMakeLists.txt), the tokenizer module (src/text/CMakeLists.txt), manual page,
# completions, documentation. The tree works wherever it is moved: src/base/program_files.h says where a program looks for
# its parts.
install(TARGETS thinpipe RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS thinpipe_full RUNTIME DESTINATION ${CMAKE_INSTALL_LIBDIR}/thinpipe)

# Made from what the program prints, when it is installed and not before: a plain build does not pay for them.
set(made ${PROJECT_BINARY_DIR}/installed)
set(PACKAGING_DIR ${PROJECT_SOURCE_DIR}/packaging)
cmake_host_system_information(RESULT THINPIPE_HOST QUERY DISTRIB_ID DISTRIB_VERSION_ID)
list(JOIN THINPIPE_HOST "" THINPIPE_HOST)
string(REPLACE "debian" "deb" THINPIPE_HOST "${THINPIPE_HOST}")
set(THINPIPE_PACKAGE_VERSION ${PROJECT_VERSION}+${THINPIPE_HOST})
configure_file(${PACKAGING_DIR}/changelog.in ${made}/changelog @ONLY)
install(CODE "set(program \"$<TARGET_FILE:thinpipe>\")\nset(made \"${made}\")\nset(packaging \"${PACKAGING_DIR}\")\nset(date ${THINPIPE_DATE})")
install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/make_installed.cmake)

install(FILES ${made}/thinpipe.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${made}/thinpipe DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${made}/_thinpipe DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
install(FILES README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md LICENSE ${PACKAGING_DIR}/copyright ${made}/changelog.gz
        DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES ${PACKAGING_DIR}/lintian-overrides DESTINATION ${CMAKE_INSTALL_DATADIR}/lintian/overrides RENAME thinpipe)
install(DIRECTORY docs configs DESTINATION ${CMAKE_INSTALL_DOCDIR})
