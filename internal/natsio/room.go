package natsio

import (
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Codes of JetStream's errors (errors.json of nats-server) for which nats.go has no name.
const (
	// CodeStoreFailed is that of a message which was not stored; the description says why.
	CodeStoreFailed jetstream.ErrorCode = 10077

	codeAccountFull jetstream.ErrorCode = 10002
	codeServerFull  jetstream.ErrorCode = 10023 // in a cluster, that of one server
	codeNoStorage   jetstream.ErrorCode = 10047
	codeNoPeers     jetstream.ErrorCode = 10005 // this and the next: too few servers for the replicas
	codeNoReplicas  jetstream.ErrorCode = 10074
)

// NoRoom reports whether the server stored nothing because it has no room: the stream, the account
// or the server itself is at its limit.
func NoRoom(refused *jetstream.APIError) bool {
	switch refused.ErrorCode {
	case codeAccountFull, codeServerFull, codeNoStorage:
		return true
	case CodeStoreFailed:
		return strings.Contains(refused.Description, "maximum") || strings.Contains(refused.Description, "no space left")
	default:
		return false
	}
}
