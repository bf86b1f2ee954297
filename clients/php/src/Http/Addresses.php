<?php

declare(strict_types=1);

namespace Tickr\Http;

/** The addresses of one tickr. All connections of a program go to the same one until it fails. */
final class Addresses
{
    /** @var list<array{scheme: string, host: string, port: int, path: string}> */
    private array $all = [];
    private int $current = 0;

    /**
     * @param string $urls one URL, or several with commas between them
     *
     * @throws \InvalidArgumentException when a URL is wrong
     */
    public function __construct(string $urls)
    {
        foreach (array_filter(array_map('trim', explode(',', $urls)), static fn ($url) => $url !== '') as $url) {
            $parts = parse_url($url);
            $scheme = strtolower($parts['scheme'] ?? '');
            if ($parts === false || !isset($parts['host']) || !\in_array($scheme, ['http', 'https'], true)) {
                throw new \InvalidArgumentException('an address of tickr must be like http://host:7070');
            }
            if (isset($parts['user']) || isset($parts['query']) || isset($parts['fragment'])) {
                throw new \InvalidArgumentException('an address of tickr has no user, query or fragment');
            }
            $this->all[] = [
                'scheme' => $scheme,
                'host' => $parts['host'],
                'port' => $parts['port'] ?? ($scheme === 'https' ? 443 : 80),
                'path' => rtrim($parts['path'] ?? '', '/'),
            ];
        }
        if ($this->all === []) {
            throw new \InvalidArgumentException('give the address of tickr, or set TICKR_URL');
        }
    }

    /** @return list<string> the addresses as text */
    public function urls(): array
    {
        $url = static fn (array $one): string => "{$one['scheme']}://{$one['host']}:{$one['port']}{$one['path']}";
        return array_map($url, $this->all);
    }

    public function count(): int
    {
        return \count($this->all);
    }

    /** The place of the address to try now. */
    public function current(): int
    {
        return $this->current;
    }

    /** @return array{scheme: string, host: string, port: int, path: string} */
    public function at(int $place): array
    {
        return $this->all[$place];
    }

    /** Go on to the next address, unless another connection has already done so. */
    public function failed(int $place): void
    {
        if ($place === $this->current) {
            $this->current = ($place + 1) % \count($this->all);
        }
    }
}
