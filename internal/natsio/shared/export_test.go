package shared

import "time"

// SetStartTime shortens the time for which another process is waited for that starts a server.
func (s *Server) SetStartTime(d time.Duration) { s.startTime = d }
