<?php

declare(strict_types=1);

namespace Tickr\Worker;

use Tickr\Http\Channel;
use Tickr\Json;

/**
 * Messages between two processes over a pair of sockets: four bytes of length, then JSON.
 *
 * @internal
 */
final class Frames
{
    private string $in = '';
    private string $out = '';
    private bool $ended = false;

    /** @param resource $stream */
    public function __construct(private $stream)
    {
        stream_set_blocking($stream, false);
        stream_set_read_buffer($stream, 0);
    }

    /** @return array{self, self} both ends of a new pair */
    public static function pair(): array
    {
        $pair = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
        if ($pair === false) {
            throw new \RuntimeException('the system gave no pair of sockets');
        }
        return [new self($pair[0]), new self($pair[1])];
    }

    /** @return resource */
    public function stream()
    {
        return $this->stream;
    }

    public function hasEnded(): bool
    {
        return $this->ended;
    }

    public function wantsToWrite(): bool
    {
        return $this->out !== '' && !$this->ended;
    }

    /** @param array<string, mixed> $message */
    public function send(array $message): void
    {
        $text = Json::encodeLossy($message);
        $this->out .= pack('N', \strlen($text)) . $text;
        $this->flush();
    }

    /** Write what the other side takes now. */
    public function flush(): void
    {
        while ($this->out !== '' && !$this->ended) {
            $written = @fwrite($this->stream, $this->out);
            if ($written === false) {
                $this->ended = true;
            } elseif ($written === 0) {
                return;
            } else {
                $this->out = substr($this->out, $written);
            }
        }
    }

    /** Write everything, however long the other side takes. */
    public function flushAll(): void
    {
        while ($this->wantsToWrite()) {
            $read = [];
            $write = [$this->stream];
            Channel::select($read, $write, 1.0);
            $this->flush();
        }
    }

    /** @return list<array<string, mixed>> the messages that have come, without waiting */
    public function receive(): array
    {
        while (!$this->ended) {
            $chunk = @fread($this->stream, 65536);
            if ($chunk === '' || $chunk === false) {
                $this->ended = feof($this->stream);
                break;
            }
            $this->in .= $chunk;
        }
        $messages = [];
        while (\strlen($this->in) >= 4) {
            $length = unpack('N', $this->in)[1];
            if (\strlen($this->in) < 4 + $length) {
                break;
            }
            $messages[] = (array) json_decode(substr($this->in, 4, $length), true);
            $this->in = substr($this->in, 4 + $length);
        }
        return $messages;
    }

    /** Wait until something can be read, at most so many seconds. */
    public function wait(float $seconds): void
    {
        $read = [$this->stream];
        $write = $this->wantsToWrite() ? [$this->stream] : [];
        Channel::select($read, $write, $seconds);
        $this->flush();
    }

    public function close(): void
    {
        $this->ended = true;
        if (\is_resource($this->stream)) {
            @fclose($this->stream);
        }
    }
}
