package egress

import (
	"context"
	"io"
	"log/slog"
	"net"
)

// tunnel moves bytes both ways until both sides are done or the client's connection is
// closed, and closes upstream. early is what the client has sent already.
func (p *Proxy) tunnel(client *conn, upstream net.Conn, early []byte, t Target) {
	defer upstream.Close()
	stop := context.AfterFunc(client.ctx, func() { _ = upstream.Close() })
	defer stop()
	p.log.DebugContext(client.ctx, "connected", slog.String("target", t.String()), slog.String("address", upstream.RemoteAddr().String()))
	up := make(chan struct{})
	go func() {
		defer close(up)
		if _, err := upstream.Write(early); err == nil {
			_, err = io.Copy(upstream, client)
			halfClose(upstream, err)
		}
	}()
	_, err := io.Copy(client, upstream)
	halfClose(client, err)
	<-up
}

// halfClose tells a side that nothing more comes. After an error in one direction the
// other one is ended too.
func halfClose(c net.Conn, err error) {
	half, ok := c.(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		_ = c.Close()
	}
}
