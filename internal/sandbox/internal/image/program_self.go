//go:build linux && !sandboxprogram

package image

// program is empty: this program is what runs as the first process of sandboxes.
var program []byte //nolint:gochecknoglobals // a constant
