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
	p.log.DebugContext(client.ctx, "connected", slog.String("target", t.String()), slog.String("address", upstream.RemoteAddr().String()))
	join(client.ctx, client, upstream, early)
}

// Join moves bytes both ways until both sides are done or ctx ends, and closes both.
func Join(ctx context.Context, client, upstream net.Conn) {
	join(ctx, client, upstream, nil)
	_ = client.Close()
}

// join is Join, without the end of the client. early goes upstream first.
func join(ctx context.Context, client, upstream net.Conn, early []byte) {
	defer upstream.Close()
	stop := context.AfterFunc(ctx, func() { _, _ = client.Close(), upstream.Close() })
	defer stop()
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
