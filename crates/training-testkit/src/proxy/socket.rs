//! A connection that is reset unless it is shut down properly.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// The connection that hyper writes to. Hyper shuts it down on purpose only; in any other case (an error that a rule requested, an
/// aborted task) the client must see a reset, because it could mistake an end for the end of a response.
pub(super) struct Socket {
    stream: TokioIo<TcpStream>,
    shut_down: bool,
}

impl Socket {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            stream: TokioIo::new(stream),
            shut_down: false,
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !self.shut_down {
            // Closing with a linger time of zero sends a reset.
            let _ = self.stream.inner().set_zero_linger();
        }
    }
}

impl Read for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl Write for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shut_down = true;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
