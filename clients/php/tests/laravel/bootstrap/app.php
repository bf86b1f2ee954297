<?php

declare(strict_types=1);

use Illuminate\Foundation\PackageManifest;

// The smallest application that runs Laravel's own queue code. It writes below TICKR_TEST_DIR only.

error_reporting(E_ALL & ~E_DEPRECATED);
$vendor = dirname(__DIR__, 3) . '/vendor/autoload.php';
is_file($vendor) ? require $vendor : require 'Illuminate/autoload.php';
require_once dirname(__DIR__, 3) . '/autoload.php';
require_once __DIR__ . '/../app/jobs.php';

$app = new Illuminate\Foundation\Application(dirname(__DIR__));
$app->useStoragePath(getenv('TICKR_TEST_DIR'));
foreach (['SERVICES', 'PACKAGES'] as $cache) {
    $_ENV["APP_{$cache}_CACHE"] = $_SERVER["APP_{$cache}_CACHE"] = getenv('TICKR_TEST_DIR') . "/$cache.php";
}
$app->singleton(Illuminate\Contracts\Console\Kernel::class, Illuminate\Foundation\Console\Kernel::class);
$app->singleton(Illuminate\Contracts\Debug\ExceptionHandler::class, Illuminate\Foundation\Exceptions\Handler::class);
// There are no packages to discover in a program without Composer.
$app->instance(PackageManifest::class, new class extends PackageManifest {
    public function __construct()
    {
    }

    public function providers()
    {
        return [];
    }

    public function aliases()
    {
        return [];
    }
});
return $app;
