package wire

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// About is what the log of calls needs to know of a call, in the header [HeaderAbout] of its
// result: the call itself leaves its stream when it is settled.
type About struct {
	Lane      string          `json:"lane,omitempty"` // POOL/LANE
	Tool      string          `json:"tool,omitempty"` // or the kind of the payload
	Turn      int             `json:"turn,omitempty"`
	Step      int             `json:"step,omitempty"`
	Index     int             `json:"index,omitempty"`
	Tenant    protocol.Tenant `json:"tenant,omitempty"`
	By        string          `json:"by,omitempty"`
	Resources []protocol.Use  `json:"resources,omitempty"`   // the first ones
	Accepted  int64           `json:"accepted_ms,omitempty"` // since 1970, by the server's clock
	// Input is a part of the payload, if no turn has made the call: else a journal has it.
	Input string `json:"input,omitempty"`
}

// Bounds of an [About]. The room of a message for headers is 16 KiB.
const (
	maxAbout      = 10 << 10
	maxAboutUses  = 16
	maxAboutInput = 2 << 10
)

// AboutOf describes a call that was accepted at a time.
func AboutOf(c *protocol.Call, accepted time.Time) About {
	a := About{
		Lane: string(c.Pool), Tool: cmp.Or(c.Tool, string(KindOf(c.Payload))), Turn: c.Turn, Step: c.Step, Index: c.Index,
		Tenant: c.Tenant, By: c.By, Resources: c.Resources[:min(len(c.Resources), maxAboutUses)], Accepted: accepted.UnixMilli(),
	}
	if len(c.Resources) > 0 { // else it is rejected
		a.Lane += "/" + string(c.Lane())
	}
	if c.Turn == 0 {
		a.Input = inputOf(c.Payload)
	}
	return a
}

// Header is what [HeaderAbout] has: one line.
func (a About) Header() string {
	text, err := json.Marshal(a)
	if err == nil && len(text) > maxAbout {
		a.Input, a.Resources = "", nil
		text, err = json.Marshal(a)
	}
	if err != nil || len(text) > maxAbout {
		return "" // never, as names are short
	}
	return string(text)
}

// Proof proves to those who know the secret of a fleet who has sent a call: 128 bits of
// HMAC-SHA-256, in base64 (URL, without padding). The sender puts it into [HeaderProof], and the
// worker returns it with the result. So a worker cannot say that it has run a call of another
// tenant.
func Proof(secret []byte, f protocol.Fleet, call protocol.CallRef, tenant protocol.Tenant, by string) string {
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "toolfleet sender 1\n%s\n%s\n%s\n%s\n%s", f, call.SessionID, call.ID, tenant, by)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}

// AboutOfHeader is the About with a header; zero for any other text.
func AboutOfHeader(text string) (a About) {
	if len(text) > maxAbout || json.Unmarshal([]byte(text), &a) != nil {
		return About{}
	}
	return a
}

// inputOf is a payload as the log of calls has it: without the values of environments and headers,
// which may be secret, and without the contents of what is written.
func inputOf(payload protocol.Payload) string {
	if _, is := payload.(TurnRun); is { // the journal has its prompt
		return ""
	}
	text, err := EncodePayload(payload)
	var all map[string]any
	if err != nil || json.Unmarshal(text, &all) != nil {
		return ""
	}
	delete(all, "type")
	delete(all, "version")
	for _, name := range []string{"env", "headers"} {
		values, _ := all[name].(map[string]any)
		for key := range values {
			values[key] = "***"
		}
	}
	if server, is := all["server"].(map[string]any); is {
		all["server"] = server["name"]
	}
	text, err = json.Marshal(shortenedValue(all))
	if err != nil || len(text) > maxAboutInput {
		sum := sha256.Sum256(text)
		text, err = json.Marshal(map[string]any{"sha256": hex.EncodeToString(sum[:]), "bytes": len(text)})
	}
	if err != nil {
		return ""
	}
	return string(text)
}

// maxValue is the length of a value from which on the log of calls has its digest and its size.
const maxValue = 1 << 10

// Shortened is the input of a call as the log of calls has it. Of long values, such as the contents
// of a file that is written, it has the digest and the size.
func Shortened(arguments string) string {
	var all map[string]any
	if len(arguments) <= maxValue || json.Unmarshal([]byte(arguments), &all) != nil {
		return arguments
	}
	short, err := json.Marshal(shortenedValue(all))
	if err != nil {
		return arguments
	}
	return string(short)
}

func shortenedValue(value any) any {
	switch v := value.(type) {
	case string:
		if len(v) > maxValue {
			sum := sha256.Sum256([]byte(v))
			return map[string]any{"sha256": hex.EncodeToString(sum[:]), "bytes": len(v)}
		}
	case map[string]any:
		for key := range v {
			v[key] = shortenedValue(v[key])
		}
	case []any:
		for i := range v {
			v[i] = shortenedValue(v[i])
		}
	}
	return value
}
