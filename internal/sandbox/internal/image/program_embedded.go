//go:build linux && sandboxprogram

package image

import _ "embed"

// program is what runs as the first process of sandboxes: package initd alone. The
// Makefile builds it.
//
//go:embed program.bin
var program []byte
