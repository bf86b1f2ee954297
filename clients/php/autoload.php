<?php

declare(strict_types=1);

// The autoloader for programs without Composer. It follows the PSR-4 rule of composer.json.

spl_autoload_register(static function (string $class): void {
    if (str_starts_with($class, 'Tickr\\') && !str_starts_with($class, 'Tickr\\Tests\\')) {
        $file = __DIR__ . '/src/' . strtr(substr($class, 6), '\\', '/') . '.php';
        if (is_file($file)) {
            require $file;
        }
    }
});
