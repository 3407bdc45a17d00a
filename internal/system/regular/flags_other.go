//go:build !unix

package regular

// nonblock is nothing where opening a file does not wait.
const nonblock = 0
