package sandboxes

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"sync"

	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// maxDigests bounds the files that are remembered. Beyond it all are forgotten: the sessions read
// again what they change.
const maxDigests = 10_000

// maxDigestBytes bounds the file: most lines have 100 to 200 bytes.
const maxDigestBytes = 64 << 20

// spareLines is how many outdated lines the file may have, in addition to as many as there are
// current ones. Then it is rewritten.
const spareLines = 1000

// Digests remembers which content of a sandbox's files its sessions have read or written last, for
// guarded sessions. It is stored in a file next to the workspace, for the next worker that serves
// the sandbox. It is safe for concurrent use.
type Digests struct {
	path string // of the file

	mu     sync.Mutex
	loaded bool
	files  map[digestKey]string
	lines  int // of the file
}

type digestKey struct {
	session protocol.SessionID
	path    string
}

// digestLine is a line of the file; the last one of a session and path counts.
type digestLine struct {
	Session protocol.SessionID `json:"session"`
	Path    string             `json:"path"`
	SHA256  string             `json:"sha256"`
}

// NewDigests returns the digests that are stored in a file.
func NewDigests(path string) *Digests { return &Digests{path: path} }

// reload has the file read again: another worker may have written it.
func (s *Digests) reload() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loaded, s.lines = false, 0
}

// Note remembers the digest of a file that a guarded session has read or written; "" if the file
// does not exist.
func (s *Digests) Note(guard protocol.Guard, session protocol.SessionID, path, sha256 string) {
	if guard == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.load()
	key := digestKey{session, path}
	if s.files[key] == sha256 {
		return
	}
	if len(s.files) >= maxDigests {
		clear(s.files)
	}
	s.files[key] = sha256
	if s.lines >= 2*len(s.files)+spareLines {
		s.rewrite()
		return
	}
	if regular.Append(s.path, appendLine(nil, key, sha256)) == nil { // else the session reads the file again
		s.lines++
	}
}

// rewrite writes the file without outdated lines. The lock is held.
func (s *Digests) rewrite() {
	var content []byte
	for key, sha256 := range s.files {
		content = appendLine(content, key, sha256)
	}
	if regular.Replace(s.path, content) != nil {
		return // the next Note tries again
	}
	s.lines = len(s.files)
}

func appendLine(content []byte, key digestKey, sha256 string) []byte {
	line, _ := json.Marshal(digestLine{key.session, key.path, sha256}) // strings always encode
	return append(append(content, line...), '\n')
}

// Expect returns the digest that a file must have for a session to change it; "" when the session
// knows no content. A digest that the call names itself counts instead of the remembered one.
func (s *Digests) Expect(guard protocol.Guard, session protocol.SessionID, path, sha256 string) string {
	if sha256 != "" || guard == "" || guard == protocol.GuardAbsent {
		return sha256
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.load()
	return s.files[digestKey{session, path}]
}

// load reads the file once. The lock is held.
func (s *Digests) load() {
	if s.loaded {
		return
	}
	s.loaded, s.files = true, map[digestKey]string{}
	content, err := regular.Read(s.path, maxDigestBytes)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.lines = 2*maxDigests + spareLines // the next Note writes another file in its place
	}
	for text := range bytes.Lines(content) {
		s.lines++
		var line digestLine
		if json.Unmarshal(text, &line) == nil {
			s.files[digestKey{line.Session, line.Path}] = line.SHA256
		}
	}
	if len(content) > 0 && content[len(content)-1] != '\n' {
		s.rewrite() // its last worker was killed while it wrote: the next line would be lost
	}
}
