# The .deb, by CPack: docs/installing.md says how to make it, .ci/package tries it out on a bare Debian.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME thinpipe)
set(CPACK_PACKAGE_CONTACT "thinpipe developers <thinpipe@example.org>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains language models over ordinary internet links")
set(CPACK_PACKAGE_DESCRIPTION
"thinpipe cuts a transformer language model into pipeline stages, one per
machine, and trains it over ordinary internet links. The model is built so
that what crosses a link lies in a small subspace: only coordinates are sent,
a hundred times fewer bytes than float32 activations, and nothing is lost.
.
Machines join by invite, from behind home routers too, and any of them may
leave or fail. Every connection is encrypted.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
# A package fits only the Debian that it was built on, whose libraries it names, so its version names that: 0.1.0+deb13.
set(CPACK_DEBIAN_PACKAGE_VERSION ${THINPIPE_PACKAGE_VERSION})
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
# What the programs and the tokenizer module are linked with is found by dpkg-shlibdeps. It cannot know which OpenBLAS the
# RPATH points to (cmake/toolchain.cmake), nor that the default corpus is printed by a program.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libopenblas0-openmp, bible-kjv")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
# Folders that were made with a looser mask would be installed so.
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
    WORLD_READ WORLD_EXECUTE)
include(CPack)
