package worker

import (
	"bytes"
	"encoding/json"
	"os"
	"sync"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// maxSeen is how many files a sandbox's sessions are remembered to have seen. When
// there are more, all are forgotten: the sessions read again what they change.
const maxSeen = 10_000

// spareLines is how many lines the file may have beside twice as many as there is to remember. Then
// it is written anew.
const spareLines = 1000

// seen remembers which content of a sandbox's files its sessions have read or written,
// for those that are guarded. It is kept in a file beside the workspace, so that it
// is there for whichever worker serves the sandbox next. It is safe for concurrent use.
type seen struct {
	path string // of the file

	mu     sync.Mutex
	loaded bool
	files  map[seenKey]string // to digests
	lines  int                // of the file
}

type seenKey struct {
	session protocol.SessionID
	path    string
}

// seenLine is a line of the file; the last one of a session and path counts.
type seenLine struct {
	Session protocol.SessionID `json:"session"`
	Path    string             `json:"path"`
	SHA256  string             `json:"sha256"`
}

func newSeen(path string) *seen { return &seen{path: path} }

// reload has the file read again: another worker may have written it.
func (s *seen) reload() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loaded, s.lines = false, 0
}

// note remembers that a guarded session has seen a file with this digest; "" is that there is none.
func (s *seen) note(guard protocol.Guard, session protocol.SessionID, path, sha256 string) {
	if guard == protocol.GuardNone {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.load()
	key := seenKey{session, path}
	if s.files[key] == sha256 {
		return
	}
	if len(s.files) >= maxSeen {
		clear(s.files)
	}
	s.files[key] = sha256
	if s.lines >= 2*len(s.files)+spareLines {
		s.rewrite()
		return
	}
	file, err := os.OpenFile(s.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return // what cannot be kept is forgotten, and then asked for again
	}
	_, _ = file.Write(appendSeen(nil, key, sha256))
	_ = file.Close()
	s.lines++
}

// rewrite has the file hold what is remembered, and nothing that was. The lock is held.
func (s *seen) rewrite() {
	var content []byte
	for key, sha256 := range s.files {
		content = appendSeen(content, key, sha256)
	}
	if writeAside(s.path, content) != nil {
		return // it is tried again
	}
	s.lines = len(s.files)
}

func appendSeen(content []byte, key seenKey, sha256 string) []byte {
	line, _ := json.Marshal(seenLine{key.session, key.path, sha256}) // strings always encode
	return append(append(content, line...), '\n')
}

// expect is what a file must be for a session to change it. A digest that the call names
// itself stands for what the session has seen.
func (s *seen) expect(guard protocol.Guard, session protocol.SessionID, path, sha256 string) sandbox.Expect {
	if sha256 != "" || guard == protocol.GuardNone {
		return sandbox.Expect{SHA256: sha256}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.load()
	known := s.files[seenKey{session, path}]
	return sandbox.Expect{SHA256: known, Absent: known == "" && guard == protocol.GuardRead}
}

// load reads the file once. The lock is held.
func (s *seen) load() {
	if s.loaded {
		return
	}
	s.loaded, s.files = true, map[seenKey]string{}
	content, err := os.ReadFile(s.path)
	if err != nil {
		return
	}
	for text := range bytes.Lines(content) {
		s.lines++
		var line seenLine
		if json.Unmarshal(text, &line) == nil {
			s.files[seenKey{line.Session, line.Path}] = line.SHA256
		}
	}
	if len(content) > 0 && content[len(content)-1] != '\n' {
		s.rewrite() // its last worker was killed while it wrote: the next line would be lost, too
	}
}
