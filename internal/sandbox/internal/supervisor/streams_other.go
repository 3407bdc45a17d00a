//go:build !linux

package supervisor

import "os"

// pipes of the systems that cannot tell which of two writes came first.
type pipes = unorderedPipes

func openPipes() (_ *pipes, stdout, stderr *os.File, err error) { return openUnordered() }
