//go:build !linux

package access

import "net/http"

// KnowsUsers says that this system says whose a connection is.
const KnowsUsers = false

// UserOf returns the user of this machine whose process has sent a request. This system does not
// say whose a connection is.
func UserOf(*http.Request) (user uint64, known bool) { return 0, false }
